package kstore.oracle;

import kafka.server.AbstractFetcherThread;
import kafka.server.FailedPartitions;
import kafka.server.InitialFetchState;
import kafka.server.OffsetTruncationState;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.message.OffsetForLeaderEpochRequestData.OffsetForLeaderPartition;
import org.apache.kafka.common.message.OffsetForLeaderEpochResponseData.EpochEndOffset;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.FetchRequest;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.LeaderEndPoint;
import org.apache.kafka.server.PartitionFetchState;
import org.apache.kafka.server.ReplicaFetch;
import org.apache.kafka.server.ResultWithPartitions;
import org.apache.kafka.server.common.OffsetAndEpoch;
import org.apache.kafka.server.network.BrokerEndPoint;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Kafka's own fetcher thread over one partition, whose work is done when the test says so and on the test's thread. Every decision is
 * AbstractFetcherThread's: what to ask, where to truncate to, when to ask again. `Leader` and `Follower` are the two logs. What it does
 * to the follower is kept as events.
 */
final class Fetcher extends AbstractFetcherThread {
    /** The leader, as one fetcher sees it. */
    interface Leader {
        FetchResponseData.PartitionData fetch(FetchRequest.PartitionData request) throws Exception;

        EpochEndOffset endOffsetFor(int currentLeaderEpoch, int epoch);

        long logStartOffset();

        long logEndOffset();
    }

    /** The follower's log. */
    interface Follower {
        Optional<Integer> latestEpoch();

        long logStartOffset();

        long logEndOffset();

        Optional<OffsetAndEpoch> endOffsetForEpoch(int epoch);

        LogAppendInfo append(long fetchOffset, int leaderEpoch, FetchResponseData.PartitionData data) throws Exception;

        void truncateTo(long offset);

        void truncateFullyAndStartAt(long offset);

        /** The events of restarts since the last call: a fetcher orders some, and an append others, inside of a first batch. */
        List<List<Object>> takeRestarts();
    }

    private static final BrokerTopicStats STATS = new BrokerTopicStats();
    private static final BrokerEndPoint BROKER = new BrokerEndPoint(1, "leader", 9092);
    private static final Uuid TOPIC_ID = new Uuid(1, 1);

    private final TopicPartition partition;
    private final Follower follower;
    private final List<List<Object>> events = new ArrayList<>();

    /** With "truncate on fetch", as today, the leader's answers to fetches say where logs diverge; without it the fetcher asks first. */
    Fetcher(TopicPartition partition, Leader leader, Follower follower, int maxBytes, boolean truncateOnFetch) {
        super("fetcher", "fetcher", new EndPoint(partition, leader, maxBytes, truncateOnFetch), new FailedPartitions(), null, 0, false, STATS);
        this.partition = partition;
        this.follower = follower;
    }

    /** Begins to follow in a leader epoch. A negative offset asks the leader for its range first. */
    void follow(int leaderEpoch, long initialOffset) {
        InitialFetchState state = new InitialFetchState(Option.apply(TOPIC_ID), BROKER, leaderEpoch, initialOffset);
        addPartitions(CollectionConverters.asScala(Map.of(partition, state)));
    }

    void leave() {
        removeAllPartitions();
        fetcherStats().unregister();
        fetcherLagStats().unregister();
    }

    /** What happened since the last call. */
    List<List<Object>> takeEvents() {
        List<List<Object>> taken = List.copyOf(events);
        events.clear();
        return taken;
    }

    /** Where it stands; null when the partition has failed. */
    PartitionFetchState state() {
        return fetchState(partition).getOrElse(() -> null);
    }

    /** What a fetch's answer with a diverging epoch, or an answer about an epoch's end, leads to. */
    void answered(int epoch, long endOffset) {
        EpochEndOffset answer = new EpochEndOffset().setPartition(partition.partition()).setLeaderEpoch(epoch).setEndOffset(endOffset);
        truncateOnFetchResponse(CollectionConverters.asScala(Map.of(partition, answer)));
    }

    @Override
    public Option<LogAppendInfo> processPartitionData(TopicPartition tp, long fetchOffset, int leaderEpoch,
                                                      FetchResponseData.PartitionData data) {
        try {
            LogAppendInfo info = follower.append(fetchOffset, leaderEpoch, data);
            events.addAll(follower.takeRestarts());
            events.add(List.of("fetch", fetchOffset, follower.logEndOffset()));
            return Option.apply(info);
        } catch (Exception e) {
            events.add(List.of("failure", String.valueOf(e)));
            throw e instanceof RuntimeException unchecked ? unchecked : new IllegalStateException(e);
        }
    }

    @Override
    public void truncate(TopicPartition tp, OffsetTruncationState state) {
        events.add(List.of("truncate", state.offset(), state.truncationCompleted()));
        follower.truncateTo(state.offset());
    }

    @Override
    public void truncateFullyAndStartAt(TopicPartition tp, long offset) {
        follower.truncateFullyAndStartAt(offset);
        events.addAll(follower.takeRestarts());
    }

    @Override
    public Optional<Integer> latestEpoch(TopicPartition tp) {
        return follower.latestEpoch();
    }

    @Override
    public long logStartOffset(TopicPartition tp) {
        return follower.logStartOffset();
    }

    @Override
    public long logEndOffset(TopicPartition tp) {
        return follower.logEndOffset();
    }

    @Override
    public Optional<OffsetAndEpoch> endOffsetForEpoch(TopicPartition tp, int epoch) {
        return follower.endOffsetForEpoch(epoch);
    }

    @Override
    public boolean shouldFetchFromLastTieredOffset(TopicPartition tp, long leaderEndOffset, long replicaEndOffset) {
        return false;
    }

    /** The leader behind the interface that fetcher threads talk to. */
    private record EndPoint(TopicPartition partition, Leader log, int maxBytes, boolean isTruncationOnFetchSupported)
        implements LeaderEndPoint {
        @Override
        public void initiateClose() {
        }

        @Override
        public void close() {
        }

        @Override
        public BrokerEndPoint brokerEndPoint() {
            return BROKER;
        }

        @Override
        public Map<TopicPartition, FetchResponseData.PartitionData> fetch(FetchRequest.Builder request) {
            FetchResponseData.PartitionData answer;
            try {
                answer = log.fetch(request.fetchData().get(partition));
            } catch (Exception e) {
                answer = new FetchResponseData.PartitionData().setErrorCode(Errors.forException(e).code());
            }
            return Map.of(partition, answer.setPartitionIndex(partition.partition()));
        }

        @Override
        public OffsetAndEpoch fetchEarliestOffset(TopicPartition tp, int currentLeaderEpoch) {
            return new OffsetAndEpoch(log.logStartOffset(), currentLeaderEpoch);
        }

        @Override
        public OffsetAndEpoch fetchLatestOffset(TopicPartition tp, int currentLeaderEpoch) {
            return new OffsetAndEpoch(log.logEndOffset(), currentLeaderEpoch);
        }

        @Override
        public OffsetAndEpoch fetchEarliestLocalOffset(TopicPartition tp, int currentLeaderEpoch) {
            return fetchEarliestOffset(tp, currentLeaderEpoch);
        }

        @Override
        public OffsetAndEpoch fetchEarliestPendingUploadOffset(TopicPartition tp, int currentLeaderEpoch) {
            throw new UnsupportedOperationException("nothing is uploaded");
        }

        @Override
        public Map<TopicPartition, EpochEndOffset> fetchEpochEndOffsets(Map<TopicPartition, OffsetForLeaderPartition> requests) {
            Map<TopicPartition, EpochEndOffset> answers = new HashMap<>();
            requests.forEach((tp, request) -> answers.put(tp, log.endOffsetFor(request.currentLeaderEpoch(), request.leaderEpoch())));
            return answers;
        }

        /** As RemoteLeaderEndPoint: one request for what is ready to fetch. */
        @Override
        public ResultWithPartitions<Optional<ReplicaFetch>> buildFetch(Map<TopicPartition, PartitionFetchState> states) {
            PartitionFetchState state = states.get(partition);
            if (state == null || !state.isReadyForFetch())
                return new ResultWithPartitions<>(Optional.empty(), Set.of());
            FetchRequest.PartitionData request = new FetchRequest.PartitionData(TOPIC_ID, state.fetchOffset(), 0, maxBytes,
                Optional.of(state.currentLeaderEpoch()), isTruncationOnFetchSupported ? state.lastFetchedEpoch() : Optional.empty());
            Map<TopicPartition, FetchRequest.PartitionData> requests = Map.of(partition, request);
            FetchRequest.Builder builder = FetchRequest.Builder.forReplica(ApiKeys.FETCH.latestVersion(), 2, -1, 0, 0, requests);
            return new ResultWithPartitions<>(Optional.of(new ReplicaFetch(requests, builder)), Set.of());
        }
    }
}
