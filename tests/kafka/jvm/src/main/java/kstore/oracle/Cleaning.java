package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

import java.io.File;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Consumer;

/**
 * What a cleaner thread does with one log: Kafka's manager selects it by the checkpoint beside it, Kafka's cleaner rewrites it, and the
 * manager writes the checkpoint. A manager lives for one operation, so that a failed log is tried again.
 */
final class Cleaning implements AutoCloseable {
    private static final int BYTES_OF_A_SLOT = 24;

    private final Handle handle;
    private final LogCleanerManager manager;

    Cleaning(Handle handle) {
        this.handle = handle;
        ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>(Map.of(handle.log.topicPartition(), handle.log));
        manager = new LogCleanerManager(List.of(root()), logs, new LogDirFailureChannel(10));
    }

    private File root() {
        return handle.log.parentDirFile();
    }

    @Override
    public void close() {
        manager.removeMetrics();
    }

    /** What a round would clean by the log's settings; null where a cleaner thread would leave the log alone. */
    static Object select(Handle handle, JsonNode request) {
        try (Cleaning cleaning = new Cleaning(handle)) {
            return cleaning.grab().map(Cleaning::describe).orElse(null);
        }
    }

    /**
     * One round; null where nothing is cleanable. "map_keys" is how many keys the map takes, "forced" leaves ratio and lags out of the
     * selection. A failure leaves the first dirty offset as it was, as in a cleaner thread.
     */
    static Object clean(Handle handle, JsonNode request) throws Exception {
        try (Cleaning cleaning = new Cleaning(handle)) {
            LogConfig config = handle.log.config();
            Optional<LogToClean> selected;
            if (Json.flag(request, "forced", false)) {
                handle.log.updateConfig(atOnce(config));
                try {
                    selected = cleaning.grab();
                } finally {
                    handle.log.updateConfig(config);
                }
            } else
                selected = cleaning.grab();
            return selected.isPresent() ? cleaning.round(selected.get(), request) : null;
        }
    }

    /** After a truncation below the active segment, as the log manager does: the first dirty offset is not above the new active base. */
    static void truncated(Handle handle) {
        if (!new File(handle.log.parentDirFile(), LogCleanerManager.OFFSET_CHECKPOINT_FILE).exists())
            return;
        try (Cleaning cleaning = new Cleaning(handle)) {
            cleaning.manager.maybeTruncateCheckpoint(cleaning.root(), handle.log.topicPartition(), handle.log.activeSegment().baseOffset());
        }
    }

    private static LogConfig atOnce(LogConfig config) {
        Map<String, Object> settings = new HashMap<>(config.originals());
        settings.put("min.cleanable.dirty.ratio", "0");
        settings.put("min.compaction.lag.ms", "0");
        settings.put("cleanup.policy", "compact");
        return new LogConfig(settings);
    }

    private Optional<LogToClean> grab() {
        return manager.grabFilthiestCompactedLog(handle.clock, new PreCleanStats());
    }

    private Object round(LogToClean selected, JsonNode request) throws Exception {
        int mapKeys = Json.integer(request, "map_keys", 1 << 16);
        int buffer = Json.integer(request, "io_buffer_bytes", 256 << 10);
        Cleaner cleaner = cleaner(handle, mapKeys, buffer, Json.integer(request, "max_io_buffer_bytes", 1_048_588),
            partition -> manager.checkCleaningAborted(partition));
        long end = selected.firstDirtyOffset();
        try {
            Map.Entry<Long, CleanerStats> round = cleaner.clean(selected);
            end = round.getKey();
            setClocks();
            Map<String, Object> answer = describe(selected);
            CleanerStats stats = round.getValue();
            answer.put("end_offset", end);
            answer.put("keys", cleaner.offsetMap().size());
            answer.put("map_records", stats.mapMessagesRead());
            answer.put("records_before", stats.messagesRead());
            answer.put("records_after", stats.messagesWritten());
            answer.put("bytes_before", stats.bytesRead());
            answer.put("bytes_after", stats.bytesWritten());
            answer.put("keyless", stats.invalidMessagesRead());
            return answer;
        } finally {
            manager.doneCleaning(selected.topicPartition(), root(), end);
        }
    }

    /** Kafka gives the segments that a cleaner makes the system's clock, by which they would roll. */
    private void setClocks() throws ReflectiveOperationException {
        Field time = LogSegment.class.getDeclaredField("time");
        Field created = LogSegment.class.getDeclaredField("created");
        time.setAccessible(true);
        created.setAccessible(true);
        for (LogSegment segment : handle.log.logSegments()) {
            if (time.get(segment) != handle.clock) {
                time.set(segment, handle.clock);
                created.setLong(segment, handle.clock.milliseconds());
            }
        }
    }

    /** A cleaner whose map takes so many keys: half of its slots. */
    static Cleaner cleaner(Handle handle, int mapKeys, int buffer, int maxBuffer, Consumer<TopicPartition> checkDone) throws Exception {
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", handle.clock);
        SkimpyOffsetMap map = new SkimpyOffsetMap(Math.multiplyExact(2 * mapKeys, BYTES_OF_A_SLOT));
        return new Cleaner(0, map, buffer, maxBuffer, 0.5, throttler, handle.clock, checkDone);
    }

    private static Map<String, Object> describe(LogToClean selected) {
        return Json.map(
            "first_dirty_offset", selected.firstDirtyOffset(),
            "first_uncleanable_offset", selected.firstUncleanableOffset(),
            "clean_bytes", selected.cleanBytes(),
            "cleanable_bytes", selected.cleanableBytes(),
            "ratio", selected.cleanableRatio());
    }
}
