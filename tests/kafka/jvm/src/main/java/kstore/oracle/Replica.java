package kstore.oracle;

import kafka.cluster.DelayedOperations;
import kafka.cluster.Partition;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.OffsetForLeaderEpochResponseData.EpochEndOffset;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Records;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.partition.AlterPartitionListener;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.storage.log.FetchParams;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogReadInfo;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.UnifiedLog;

import scala.Option;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * A log as a broker has it: Kafka's own Partition, which becomes leader, answers fetches and epochs' ends, and appends as a follower.
 * It has no log manager: truncations go to the log, and what the manager would do besides is done here.
 */
final class Replica extends Partition implements Fetcher.Leader, Fetcher.Follower {
    private static final int ID = 1;
    private static final AlterPartitionListener NOTHING_ALTERS = new AlterPartitionListener() {
        @Override
        public void markIsrExpand() {
        }

        @Override
        public void markIsrShrink() {
        }

        @Override
        public void markFailed() {
        }
    };

    /** No request waits here. */
    private static final class NoneDelayed extends DelayedOperations {
        NoneDelayed(TopicPartition partition) {
            super(Option.empty(), partition, null, null, null, null);
        }

        @Override
        public void checkAndCompleteAll() {
        }
    }

    private final Handle handle;
    private final List<List<Object>> restarts = new ArrayList<>();
    private int partitionEpoch;

    Replica(Handle handle) {
        super(handle.log.topicPartition(), 30_000, ID, () -> 1L, handle.clock, NOTHING_ALTERS, new NoneDelayed(handle.log.topicPartition()),
            null, null, null, handle.log.topicId().isPresent() ? Option.apply(handle.log.topicId().get()) : Option.empty());
        this.handle = handle;
        setLog(handle.log, false);
    }

    /** Becomes leader of a new epoch, the one in-sync replica. */
    void lead(int leaderEpoch) {
        PartitionRegistration state = new PartitionRegistration.Builder()
            .setReplicas(new int[] {ID}).setIsr(new int[] {ID}).setLeader(ID).setDirectories(new Uuid[] {new Uuid(2, 2)})
            .setLeaderRecoveryState(LeaderRecoveryState.RECOVERED).setLeaderEpoch(leaderEpoch).setPartitionEpoch(++partitionEpoch).build();
        makeLeader(state, false, (dir, partition) -> Optional.empty(), topicId(), Option.empty());
    }

    // The leader's side

    @Override
    public FetchResponseData.PartitionData fetch(FetchRequest.PartitionData request) throws IOException {
        // A consumer that reads to the log end: no state of followers is kept, and the high watermark is that of a leader alone.
        FetchParams params = new FetchParams(FetchRequest.CONSUMER_REPLICA_ID, -1, 0, 0, request.maxBytes, FetchIsolation.LOG_END,
            Optional.empty());
        LogReadInfo info = fetchRecords(params, request, handle.clock.milliseconds(), request.maxBytes, true, false);
        FetchResponseData.PartitionData answer = new FetchResponseData.PartitionData()
            .setHighWatermark(info.highWatermark())
            .setLogStartOffset(info.logStartOffset())
            .setLastStableOffset(info.lastStableOffset())
            .setRecords(inMemory(info.fetchedData().records));
        info.divergingEpoch().ifPresent(answer::setDivergingEpoch);
        return answer;
    }

    private static MemoryRecords inMemory(Records records) throws IOException {
        if (records instanceof MemoryRecords memory)
            return memory;
        ByteBuffer buffer = ByteBuffer.allocate(records.sizeInBytes());
        ((FileRecords) records).readInto(buffer, 0);
        return MemoryRecords.readableRecords(buffer);
    }

    @Override
    public EpochEndOffset endOffsetFor(int currentLeaderEpoch, int epoch) {
        return lastOffsetForLeaderEpoch(Optional.of(currentLeaderEpoch), epoch, true);
    }

    @Override
    public long logStartOffset() {
        return handle.log.logStartOffset();
    }

    @Override
    public long logEndOffset() {
        return handle.log.logEndOffset();
    }

    // The follower's side, as ReplicaFetcherThread has it

    @Override
    public Optional<Integer> latestEpoch() {
        return handle.log.latestEpoch();
    }

    @Override
    public Optional<OffsetAndEpoch> endOffsetForEpoch(int epoch) {
        return handle.log.endOffsetForEpoch(epoch);
    }

    @Override
    public LogAppendInfo append(long fetchOffset, int leaderEpoch, FetchResponseData.PartitionData data) throws IOException {
        UnifiedLog log = handle.log;
        if (fetchOffset != log.logEndOffset())
            throw new IllegalStateException("fetched from " + fetchOffset + ", and the log ends at " + log.logEndOffset());
        Option<LogAppendInfo> info = appendRecordsToFollowerOrFutureReplica((MemoryRecords) data.records(), false, leaderEpoch);
        log.maybeUpdateHighWatermark(data.highWatermark());
        log.maybeIncrementLogStartOffset(data.logStartOffset(), LogStartOffsetIncrementReason.LeaderOffsetIncremented);
        return info.get();
    }

    @Override
    public void truncateTo(long offset) {
        truncateTo(offset, false);
    }

    @Override
    public void truncateFullyAndStartAt(long offset) {
        truncateFullyAndStartAt(offset, false, Optional.empty());
    }

    // What Partition asks its log manager for

    @Override
    public void truncateTo(long offset, boolean isFuture) {
        boolean belowActive = offset < handle.log.activeSegment().baseOffset();
        if (handle.log.truncateTo(offset))
            checkpoint();
        if (belowActive)
            Cleaning.truncated(handle);
    }

    @Override
    public void truncateFullyAndStartAt(long offset, boolean isFuture, Optional<Long> logStartOffset) {
        handle.log.truncateFullyAndStartAt(offset, logStartOffset);
        Cleaning.truncated(handle);
        checkpoint();
        restarts.add(List.of("fully", offset));
    }

    @Override
    public List<List<Object>> takeRestarts() {
        List<List<Object>> taken = List.copyOf(restarts);
        restarts.clear();
        return taken;
    }

    private void checkpoint() {
        try {
            handle.checkpointRecovery();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
