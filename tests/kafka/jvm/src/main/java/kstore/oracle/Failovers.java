package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.OffsetForLeaderEpochResponseData.EpochEndOffset;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.server.PartitionFetchState;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.EpochEntry;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Main with leaders and followers: "lead" makes the broker's partition of an open log leader, "follow" has Kafka's fetcher copy one log
 * to another, and "truncations" and "answers" ask the fetcher about epoch caches alone. Needs the class path of the broker.
 */
public final class Failovers {
    private static final TopicPartition PARTITION = new TopicPartition("events", 0);
    private static final int MAX_TURNS = 100;

    private final Logs logs = new Logs();
    private final Map<Handle, Replica> leaders = new HashMap<>();

    private Failovers() {
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "off");  // each truncation is a warning of Kafka's
        Failovers failovers = new Failovers();
        Map<String, Main.Operation> operations = new LinkedHashMap<>();
        operations.put("encode", request -> Json.base64(Batches.encode(request)));
        operations.put("records", request -> Batches.records(new File(Json.text(request, "path"))));
        failovers.logs.register(operations);
        operations.put("lead", failovers::lead);
        operations.put("fetch", failovers::fetch);
        operations.put("follow", failovers::follow);
        operations.put("truncations", request -> each(request, Failovers::truncations));
        operations.put("answers", request -> each(request, Failovers::answers));
        operations.put("ends", request -> each(request, Failovers::ends));
        new Main(operations).serve();
    }

    private interface Case {
        Object run(JsonNode given) throws Exception;
    }

    private static List<Object> each(JsonNode request, Case one) throws Exception {
        List<Object> found = new ArrayList<>();
        for (JsonNode given : Json.need(request, "cases"))
            found.add(one.run(given));
        return found;
    }

    // Whole logs

    private Object lead(JsonNode request) throws IOException {
        Handle handle = logs.need(request);
        leaders.keySet().removeIf(known -> known.isClosed());
        leaders.computeIfAbsent(handle, Replica::new).lead(Json.integer(request, "leader_epoch", 0));
        return null;
    }

    /** A follower's fetch, as the leader answers it; null where it gives records, or has none yet. */
    private Object fetch(JsonNode request) throws Exception {
        Optional<Integer> last = Json.given(request, "last_fetched_epoch") ? Optional.of(Json.integer(request, "last_fetched_epoch", -1))
            : Optional.empty();
        FetchResponseData.PartitionData answer = leaders.get(logs.need(request)).fetch(new FetchRequest.PartitionData(null,
            Json.number(request, "offset"), 0, 1 << 20, Optional.empty(), last));
        FetchResponseData.EpochEndOffset diverging = answer.divergingEpoch();
        return diverging.endOffset() < 0 ? null : List.of(diverging.epoch(), diverging.endOffset());
    }

    /**
     * Follows "leader" until it has all of its log, or has failed; what the fetcher did. "offset" is where it begins: a broker's
     * follower begins at its high watermark if it has no epochs, and at its log end otherwise. "turns" ends it early.
     */
    private Object follow(JsonNode request) throws Exception {
        Handle handle = logs.need(request);
        Replica leader = leaders.get(logs.need(Json.text(request, "leader")));
        leaders.remove(handle);
        Fetcher fetcher = new Fetcher(handle.log.topicPartition(), leader, new Replica(handle), Json.integer(request, "max_bytes", 1 << 20),
            Json.flag(request, "truncate_on_fetch", true));
        boolean knows = handle.log.latestEpoch().isPresent();
        long offset = Json.number(request, "offset", knows ? handle.log.logEndOffset() : handle.log.highWatermark());
        try {
            fetcher.follow(Json.integer(request, "leader_epoch", 0), offset);
            return run(fetcher, Json.integer(request, "turns", MAX_TURNS), () -> handle.log.logEndOffset() == leader.logEndOffset());
        } finally {
            fetcher.leave();
            handle.tasks.runDue();
        }
    }

    private interface Done {
        boolean isDone();
    }

    /** Ends after a fetch that was no truncation, once all is there. */
    private static Map<String, Object> run(Fetcher fetcher, int turns, Done done) {
        List<List<Object>> events = new ArrayList<>(fetcher.takeEvents());
        for (int turn = 0; turn < turns; turn++) {
            fetcher.doWork();
            List<List<Object>> latest = fetcher.takeEvents();
            events.addAll(latest);
            if (fetcher.state() == null || (latest.stream().anyMatch(event -> event.get(0).equals("fetch")) && done.isDone()))
                break;
        }
        PartitionFetchState state = fetcher.state();
        return Json.map("events", events, "failed", state == null, "fetch_offset", state == null ? null : state.fetchOffset(),
            "last_fetched_epoch", state == null ? null : state.lastFetchedEpoch().orElse(null));
    }

    // Epoch caches alone

    /** Keeps nothing on the disk. */
    private static final class NoFile extends LeaderEpochCheckpointFile {
        NoFile() throws IOException {
            super(FILE, new LogDirFailureChannel(1));
        }

        @Override
        public void write(Collection<EpochEntry> epochs) {
        }

        @Override
        public void writeIfDirExists(Collection<EpochEntry> epochs) {
        }
    }

    private static final File FILE = temporary();

    private static File temporary() {
        try {
            File file = Files.createTempFile("epochs", "").toFile();
            file.deleteOnExit();
            return file;
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    /** A log without records: its epochs, and where it starts and ends. */
    private static final class Outline implements Fetcher.Leader, Fetcher.Follower {
        final LeaderEpochFileCache epochs;
        private final Tasks tasks = new Tasks(new Clock(0));
        private long start;
        private long end;
        private boolean isRestarted;

        Outline(JsonNode given) throws IOException {
            epochs = new LeaderEpochFileCache(PARTITION, new NoFile(), tasks);
            for (JsonNode entry : Json.need(given, "epochs"))
                epochs.assign(entry.get(0).asInt(), entry.get(1).asLong());
            start = Json.number(given, "start", 0);
            end = Json.number(given, "end");
        }

        /** What Partition.readRecords finds before it reads (SEMANTICS 10.9). */
        @Override
        public FetchResponseData.PartitionData fetch(FetchRequest.PartitionData request) {
            FetchResponseData.PartitionData answer = new FetchResponseData.PartitionData().setRecords(MemoryRecords.EMPTY);
            if (request.lastFetchedEpoch.isPresent()) {
                int last = request.lastFetchedEpoch.get();
                Map.Entry<Integer, Long> found = epochs.endOffsetFor(last, end);
                if (found.getKey() < 0 || found.getValue() < 0 || request.fetchOffset < start)
                    throw new OffsetOutOfRangeException("epoch " + last + " at " + request.fetchOffset);
                if (found.getKey() < last || found.getValue() < request.fetchOffset)
                    return answer.setDivergingEpoch(new FetchResponseData.EpochEndOffset().setEpoch(found.getKey()).setEndOffset(found.getValue()));
            }
            if (request.fetchOffset < start || request.fetchOffset > end)
                throw new OffsetOutOfRangeException("offset " + request.fetchOffset);
            return answer;
        }

        @Override
        public EpochEndOffset endOffsetFor(int currentLeaderEpoch, int epoch) {
            Map.Entry<Integer, Long> found = epochs.endOffsetFor(epoch, end);
            return new EpochEndOffset().setLeaderEpoch(found.getKey()).setEndOffset(found.getValue());
        }

        @Override
        public long logStartOffset() {
            return start;
        }

        @Override
        public long logEndOffset() {
            return end;
        }

        @Override
        public Optional<Integer> latestEpoch() {
            return epochs.latestEpoch();
        }

        /** As UnifiedLog: an undefined answer is none. */
        @Override
        public Optional<OffsetAndEpoch> endOffsetForEpoch(int epoch) {
            Map.Entry<Integer, Long> found = epochs.endOffsetFor(epoch, end);
            return found.getValue() < 0 ? Optional.empty() : Optional.of(new OffsetAndEpoch(found.getValue(), found.getKey()));
        }

        /** Nothing is copied: a fetch that finds no difference ends the case. */
        @Override
        public LogAppendInfo append(long fetchOffset, int leaderEpoch, FetchResponseData.PartitionData data) {
            return LogAppendInfo.UNKNOWN_LOG_APPEND_INFO;
        }

        @Override
        public void truncateTo(long offset) {
            end = Math.min(end, offset);
            start = Math.min(start, offset);
            epochs.truncateFromEndAsyncFlush(end);
        }

        @Override
        public void truncateFullyAndStartAt(long offset) {
            start = end = offset;
            epochs.clearAndFlush();
            isRestarted = true;
        }

        @Override
        public List<List<Object>> takeRestarts() {
            List<List<Object>> taken = isRestarted ? List.of(List.of("fully", start)) : List.of();
            isRestarted = false;
            return taken;
        }
    }

    /** All that a fetcher does to a "follower" until it fetches from a "leader" without a difference. */
    private static Object truncations(JsonNode given) throws IOException {
        Outline leader = new Outline(Json.need(given, "leader"));
        Outline follower = new Outline(Json.need(given, "follower"));
        Fetcher fetcher = new Fetcher(PARTITION, leader, follower, 1 << 20, Json.flag(given, "truncate_on_fetch", true));
        try {
            fetcher.follow(1, Json.number(given, "offset"));
            return run(fetcher, MAX_TURNS, () -> true);
        } finally {
            fetcher.leave();
        }
    }

    /** Where a "follower" that began at "offset" truncates to after the answer that an "epoch" ends at "end", and whether that is all. */
    private static Object answers(JsonNode given) throws IOException {
        Outline follower = new Outline(Json.need(given, "follower"));
        Fetcher fetcher = new Fetcher(PARTITION, follower, follower, 1 << 20, true);
        try {
            fetcher.follow(1, Json.number(given, "offset"));
            fetcher.answered(Json.integer(given, "epoch", -1), Json.number(given, "end"));
            return fetcher.takeEvents().get(0);
        } finally {
            fetcher.leave();
        }
    }

    /** What a cache says of each of "asked", after "cut_end" and "cut_start" were cut from it where they are given; and what is left. */
    private static Object ends(JsonNode given) throws IOException {
        Outline log = new Outline(given);
        if (Json.given(given, "cut_end"))
            log.epochs.truncateFromEndAsyncFlush(Json.number(given, "cut_end"));
        if (Json.given(given, "cut_start"))
            log.epochs.truncateFromStartAsyncFlush(Json.number(given, "cut_start"));
        List<Object> ends = new ArrayList<>();
        for (JsonNode asked : Json.need(given, "asked")) {
            Map.Entry<Integer, Long> end = log.epochs.endOffsetFor(asked.asInt(), log.end);
            ends.add(List.of(end.getKey(), end.getValue()));
        }
        List<Object> entries = new ArrayList<>();
        for (EpochEntry entry : log.epochs.epochEntries())
            entries.add(List.of(entry.epoch(), entry.startOffset()));
        return Json.map("ends", ends, "epochs", entries);
    }
}
