package kstore.oracle;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.File;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/** One open log with its own clock and tasks, and what a broker's log manager does around it: checkpoint files and the clean marker. */
final class Handle {
    /** How a log is opened. A null number is taken from the checkpoint files beside the partition, a null "clean" from the marker. */
    record Opening(File dir, LogConfig config, long now, Boolean clean, Long recoveryPoint, Long logStart, Long highWatermark,
                   boolean verifyTransactions, int producerExpirationMs, Optional<Uuid> topicId) {
    }

    private static final int MAX_TRANSACTION_TIMEOUT_MS = 900_000;
    private static final int PRODUCER_CHECK_INTERVAL_MS = 600_000;
    /** Shared by all logs: Kafka keeps meters per topic, and every meter costs. */
    private static final BrokerTopicStats STATS = new BrokerTopicStats();

    final Clock clock;
    final Tasks tasks;
    final UnifiedLog log;
    private final File root;
    private boolean isClosed;
    private final LogDirFailureChannel failures = new LogDirFailureChannel(10);

    Handle(Opening how) throws Exception {
        root = how.dir().getParentFile();
        clock = new Clock(how.now());
        tasks = new Tasks(clock);
        TopicPartition partition = how.dir().exists() ? UnifiedLog.parseTopicPartitionName(how.dir()) : null;
        boolean clean = how.clean() != null ? how.clean() : takeMarker();
        log = UnifiedLog.create(how.dir(), how.config(),
            how.logStart() != null ? how.logStart() : line(LogManager.LOG_START_OFFSET_CHECKPOINT_FILE, partition),
            how.recoveryPoint() != null ? how.recoveryPoint() : line(LogManager.RECOVERY_POINT_CHECKPOINT_FILE, partition),
            tasks, STATS, clock, MAX_TRANSACTION_TIMEOUT_MS,
            new ProducerStateManagerConfig(how.producerExpirationMs(), how.verifyTransactions()),
            PRODUCER_CHECK_INTERVAL_MS, failures, clean, how.topicId());
        // A running broker's retention soon asks every segment for its largest timestamp; what is read once stays read.
        for (var segment : log.logSegments())
            segment.maxTimestampSoFar();
        if (how.highWatermark() != null)
            log.updateHighWatermark(how.highWatermark());
        else
            followEnd();
    }

    /** With one replica the high watermark is the end. */
    void followEnd() throws IOException {
        log.updateHighWatermark(log.logEndOffsetMetadata());
    }

    /** After an append: raised, never lowered. */
    void raiseHighWatermark() throws IOException {
        log.maybeIncrementHighWatermark(log.logEndOffsetMetadata());
    }

    /** As at a clean shutdown: flush, close, both checkpoints, and if asked the marker. */
    void close(boolean marker) throws Exception {
        isClosed = true;
        log.flush(true);
        log.close();
        checkpoint();
        log.removeLogMetrics();
        tasks.shutdown();
        if (marker)
            new CleanShutdownFileHandler(root.getPath()).write(-1L);
    }

    /** As when the process dies: files stay as they are, nothing more is written. */
    void crash() {
        isClosed = true;
        log.producerExpireCheck().cancel(true);
        tasks.shutdown();
        log.closeHandlers();
        log.removeLogMetrics();
    }

    /** Writes this log's lines as the manager's periodic tasks do; a log start that is its first segment's base has no line. */
    void checkpoint() throws IOException {
        checkpointRecovery();
        boolean inside = log.logStartOffset() > log.logSegments().get(0).baseOffset();
        write(LogManager.LOG_START_OFFSET_CHECKPOINT_FILE, inside ? log.logStartOffset() : null);
    }

    /** Writes this log's recovery point, as the manager does after a truncation too. */
    void checkpointRecovery() throws IOException {
        write(LogManager.RECOVERY_POINT_CHECKPOINT_FILE, log.recoveryPoint());
    }

    /** Whether it was closed, or has crashed. */
    boolean isClosed() {
        return isClosed;
    }

    private boolean takeMarker() throws Exception {
        CleanShutdownFileHandler marker = new CleanShutdownFileHandler(root.getPath());
        boolean clean = marker.exists();
        if (clean)
            marker.delete();
        return clean;
    }

    private long line(String file, TopicPartition partition) throws IOException {
        if (partition == null || !new File(root, file).exists())
            return 0L;
        return new OffsetCheckpointFile(new File(root, file), failures).read().getOrDefault(partition, 0L);
    }

    private void write(String file, Long offset) throws IOException {
        OffsetCheckpointFile checkpoint = new OffsetCheckpointFile(new File(root, file), failures);
        Map<TopicPartition, Long> lines = new HashMap<>(checkpoint.read());
        if (offset == null)
            lines.remove(log.topicPartition());
        else
            lines.put(log.topicPartition(), offset);
        checkpoint.write(lines);
    }
}
