package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.TimestampOffset;
import org.apache.kafka.storage.internals.log.VerificationGuard;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.OptionalLong;

/** The operations on logs. Unless a request says "tasks": false, background tasks that are due run at the end of each operation. */
final class Logs {
    /** An operation on an open log. */
    private interface LogOperation {
        Object run(Handle handle, JsonNode request) throws Exception;
    }

    private final Map<String, Handle> handles = new HashMap<>();

    void register(Map<String, Main.Operation> operations) {
        operations.put("open", this::open);
        operations.put("close", request -> {
            Handle handle = need(request);
            handles.remove(Json.text(request, "log"));
            handle.close(Json.flag(request, "marker", false));
            return null;
        });
        operations.put("crash", request -> {
            Handle handle = need(request);
            handles.remove(Json.text(request, "log"));
            handle.crash();
            return null;
        });
        on(operations, "append_leader", Logs::appendAsLeader);
        on(operations, "append_follower", Logs::appendAsFollower);
        on(operations, "roll", (handle, request) -> handle.log.roll(
            Json.given(request, "expected") ? Optional.of(Json.number(request, "expected")) : Optional.empty()).baseOffset());
        on(operations, "flush", (handle, request) -> {
            handle.log.flush(Json.flag(request, "inclusive", false));
            return handle.log.recoveryPoint();
        });
        on(operations, "truncate_to", (handle, request) -> {
            boolean belowActive = Json.number(request, "offset") < handle.log.activeSegment().baseOffset();
            boolean cut = handle.log.truncateTo(Json.number(request, "offset"));
            if (belowActive)
                Cleaning.truncated(handle);
            return cut;
        });
        on(operations, "truncate_fully", (handle, request) -> {
            handle.log.truncateFullyAndStartAt(Json.number(request, "offset"),
                Json.given(request, "log_start") ? Optional.of(Json.number(request, "log_start")) : Optional.empty());
            Cleaning.truncated(handle);
            return null;
        });
        on(operations, "delete_records", Logs::deleteRecords);
        on(operations, "retain", (handle, request) -> handle.log.deleteOldSegments());
        on(operations, "read", Logs::read);
        on(operations, "offset_for_timestamp", (handle, request) -> handle.log
            .fetchOffsetByTimestamp(Json.number(request, "timestamp"), Optional.empty()).timestampAndOffsetOpt()
            .map(Logs::timestampAndOffset).orElse(null));
        on(operations, "marks", (handle, request) -> marks(handle));
        on(operations, "select", Cleaning::select);
        on(operations, "clean", Cleaning::clean);
        on(operations, "settle", (handle, request) -> {
            handle.tasks.runDue();
            return marks(handle);
        });
        on(operations, "last_records", (handle, request) -> handle.log.lastRecordsOfActiveProducers().entrySet().stream()
            .map(entry -> List.of(entry.getKey(), entry.getValue().lastDataOffset().orElse(-1L), entry.getValue().producerEpoch())).toList());
        on(operations, "segments", Logs::segments);
        on(operations, "batches", Logs::batches);
        on(operations, "epochs", (handle, request) -> handle.log.leaderEpochCache().epochEntries().stream()
            .map(entry -> List.of(entry.epoch(), entry.startOffset())).toList());
        on(operations, "end_offset_for", (handle, request) -> {
            Map.Entry<Integer, Long> end = handle.log.leaderEpochCache()
                .endOffsetFor((int) Json.number(request, "epoch"), handle.log.logEndOffset());
            return List.of(end.getKey(), end.getValue());
        });
        on(operations, "epoch_for_offset", (handle, request) -> {
            var epoch = handle.log.leaderEpochCache().epochForOffset(Json.number(request, "offset"));
            return epoch.isPresent() ? epoch.getAsInt() : null;
        });
        on(operations, "assign_epoch", (handle, request) -> {
            handle.log.assignEpochStartOffset((int) Json.number(request, "epoch"), Json.number(request, "offset"));
            return null;
        });
        on(operations, "set_epochs", (handle, request) -> {
            handle.log.leaderEpochCache().clearAndFlush();
            for (JsonNode entry : Json.need(request, "epochs"))
                handle.log.leaderEpochCache().assign(entry.get(0).asInt(), entry.get(1).asLong());
            return null;
        });
        on(operations, "set_high_watermark", (handle, request) -> handle.log.updateHighWatermark(Json.number(request, "offset")));
        on(operations, "update_config", (handle, request) -> {
            handle.log.updateConfig(config(request));
            return null;
        });
        on(operations, "set_clock", (handle, request) -> {
            handle.clock.set(Json.number(request, "now"));
            return null;
        });
        on(operations, "run_tasks", (handle, request) -> handle.tasks.runDue());
        on(operations, "pending_tasks", (handle, request) -> handle.tasks.pending().stream()
            .map(task -> List.of(task.name, task.due)).toList());
        on(operations, "checkpoint", (handle, request) -> {
            handle.checkpoint();
            return null;
        });
    }

    private void on(Map<String, Main.Operation> operations, String name, LogOperation operation) {
        operations.put(name, request -> {
            Handle handle = need(request);
            if (Json.given(request, "now"))
                handle.clock.set(Json.number(request, "now"));
            Object answer;
            try {
                answer = operation.run(handle, request);
            } finally {
                if (Json.flag(request, "tasks", true))
                    handle.tasks.runDue();
            }
            for (Throwable failure : handle.tasks.takeFailures())
                throw new IllegalStateException("a background task failed", failure);
            return answer;
        });
    }

    Handle need(JsonNode request) {
        return need(Json.text(request, "log"));
    }

    Handle need(String name) {
        Handle handle = handles.get(name);
        if (handle == null)
            throw new NoSuchElementException("no log " + name + " is open");
        return handle;
    }

    private Object open(JsonNode request) throws Exception {
        String name = Json.text(request, "log");
        if (handles.containsKey(name))
            throw new IllegalStateException("log " + name + " is open already");
        Handle handle = new Handle(new Handle.Opening(
            new File(Json.text(request, "dir")).getAbsoluteFile(),
            config(request),
            Json.number(request, "now"),
            Json.given(request, "clean") ? Json.flag(request, "clean", true) : null,
            optional(request, "recovery_point"),
            optional(request, "log_start"),
            optional(request, "high_watermark"),
            Json.flag(request, "verify_transactions", false),
            Json.integer(request, "producer_expiration_ms", 86_400_000),
            Json.given(request, "topic_id") ? Optional.of(Uuid.fromString(Json.text(request, "topic_id"))) : Optional.empty()));
        handles.put(name, handle);
        if (Json.flag(request, "tasks", true))
            handle.tasks.runDue();
        return marks(handle);
    }

    private static Long optional(JsonNode request, String field) {
        return Json.given(request, field) ? Json.number(request, field) : null;
    }

    private static LogConfig config(JsonNode request) {
        Map<String, String> given = Json.strings(request.get("config"));
        LogConfig.validate(given);
        return LogConfig.fromProps(Map.of(), properties(given));
    }

    private static java.util.Properties properties(Map<String, String> given) {
        java.util.Properties properties = new java.util.Properties();
        properties.putAll(given);
        return properties;
    }

    private static Object appendAsLeader(Handle handle, JsonNode request) throws IOException {
        AppendOrigin origin = AppendOrigin.valueOf(Json.text(request, "origin", "client").toUpperCase(Locale.ROOT));
        short version = (short) Json.integer(request, "transaction_version", TransactionVersion.TV_UNKNOWN);
        VerificationGuard guard = VerificationGuard.SENTINEL;
        if (Json.flag(request, "verify", false))
            guard = handle.log.maybeStartTransactionVerification(Json.number(request, "producer_id"),
                Json.integer(request, "base_sequence", -1), (short) Json.integer(request, "producer_epoch", -1), true);
        LogAppendInfo info = handle.log.appendAsLeader(records(request), Json.integer(request, "leader_epoch", 0), origin,
            RequestLocal.noCaching(), guard, version);
        if (Json.flag(request, "raise", true))
            handle.raiseHighWatermark();
        return appendInfo(info);
    }

    private static Object appendAsFollower(Handle handle, JsonNode request) throws IOException {
        LogAppendInfo info = handle.log.appendAsFollower(records(request), Json.integer(request, "leader_epoch", Integer.MAX_VALUE));
        if (Json.flag(request, "raise", true))
            handle.raiseHighWatermark();
        return appendInfo(info);
    }

    /** Ready bytes ("data"), or records for Kafka's own builder. */
    private static MemoryRecords records(JsonNode request) {
        if (Json.given(request, "data"))
            return MemoryRecords.readableRecords(ByteBuffer.wrap(Json.bytes(request.get("data"))));
        return MemoryRecords.readableRecords(Batches.encode(Json.need(request, "batch")));
    }

    private static Object appendInfo(LogAppendInfo info) {
        return Json.map(
            "first_offset", info.firstOffset(),
            "last_offset", info.lastOffset(),
            "last_leader_epoch", info.lastLeaderEpoch().orElse(null),
            "max_timestamp", info.maxTimestamp(),
            "log_append_time", info.logAppendTime(),
            "log_start_offset", info.logStartOffset(),
            "source_compression", info.sourceCompression().name,
            "valid_bytes", info.validBytes(),
            "records", info.numMessages());
    }

    /** What a partition leader does with a DeleteRecords request; answers the log start. */
    private static Object deleteRecords(Handle handle, JsonNode request) {
        long offset = Json.number(request, "offset");
        if (handle.log.config().compact && !handle.log.config().delete)
            throw new PolicyViolationException("records of a compacted topic cannot be deleted");
        if (offset == -1)
            offset = handle.log.highWatermark();
        if (offset < 0)
            throw new OffsetOutOfRangeException("offset " + offset + " is below 0");
        handle.log.maybeIncrementLogStartOffset(offset, LogStartOffsetIncrementReason.ClientRecordDeletion);
        return handle.log.logStartOffset();
    }

    private static Object read(Handle handle, JsonNode request) throws IOException {
        FetchIsolation isolation = switch (Json.text(request, "isolation", "high_watermark")) {
            case "log_end" -> FetchIsolation.LOG_END;
            case "high_watermark", "read_uncommitted" -> FetchIsolation.HIGH_WATERMARK;
            case "read_committed" -> FetchIsolation.TXN_COMMITTED;
            default -> throw new IllegalArgumentException("no isolation " + Json.text(request, "isolation"));
        };
        FetchDataInfo info = handle.log.read(Json.number(request, "offset"), Json.integer(request, "max_bytes", Integer.MAX_VALUE),
            isolation, Json.flag(request, "min_one_message", true));
        ByteBuffer bytes = ByteBuffer.allocate(info.records.sizeInBytes());
        if (info.records instanceof FileRecords file)
            file.readInto(bytes, 0);
        else
            bytes.put(((MemoryRecords) info.records).buffer()).flip();
        LogOffsetMetadata where = info.fetchOffsetMetadata;
        return Json.map(
            "offset", where.messageOffset,
            "segment_base_offset", where.segmentBaseOffset,
            "position", where.relativePositionInSegment,
            "first_entry_incomplete", info.firstEntryIncomplete,
            "records", Json.base64(bytes),
            "aborted_transactions", info.abortedTransactions.map(list -> list.stream()
                .map(aborted -> List.of(aborted.producerId(), aborted.firstOffset())).toList()).orElse(null));
    }

    private static Object timestampAndOffset(FileRecords.TimestampAndOffset found) {
        return Json.map("timestamp", found.timestamp, "offset", found.offset, "leader_epoch", found.leaderEpoch.orElse(null));
    }

    private static Map<String, Object> marks(Handle handle) {
        return Json.map(
            "log_start_offset", handle.log.logStartOffset(),
            "last_stable_offset", handle.log.lastStableOffset(),
            "high_watermark", handle.log.highWatermark(),
            "log_end_offset", handle.log.logEndOffset(),
            "recovery_point", handle.log.recoveryPoint());
    }

    /** What each batch that ends at or above an offset says of itself, with its segment and its position in there. */
    private static Object batches(Handle handle, JsonNode request) {
        long offset = Json.number(request, "offset");
        List<Object> lines = new ArrayList<>();
        for (LogSegment segment : handle.log.logSegments())
            for (FileLogInputStream.FileChannelRecordBatch batch : segment.log().batches())
                if (batch.lastOffset() >= offset)
                    lines.add(Json.map(
                        "base_offset", batch.baseOffset(),
                        "last_offset", batch.lastOffset(),
                        "count", batch.countOrNull(),
                        "position", batch.position(),
                        "size_bytes", batch.sizeInBytes(),
                        "segment_base_offset", segment.baseOffset(),
                        "max_timestamp", batch.maxTimestamp(),
                        "partition_leader_epoch", batch.partitionLeaderEpoch(),
                        "magic", batch.magic(),
                        "compression", batch.compressionType().id,
                        "timestamp_type", batch.timestampType().id,
                        "is_transactional", batch.isTransactional(),
                        "is_control", batch.isControlBatch(),
                        "producer_id", batch.producerId(),
                        "producer_epoch", batch.producerEpoch(),
                        "base_sequence", batch.baseSequence(),
                        "delete_horizon_ms", batch.deleteHorizonMs().orElse(-1),
                        "crc", batch.checksum()));
        return lines;
    }

    /** Base offsets and sizes. "detail" opens indexes and reads timestamps, which a log otherwise does only when it must. */
    private static Object segments(Handle handle, JsonNode request) throws IOException {
        boolean detail = Json.flag(request, "detail", false);
        List<Object> segments = new ArrayList<>();
        for (LogSegment segment : handle.log.logSegments()) {
            Map<String, Object> line = Json.map("base_offset", segment.baseOffset(), "size_bytes", segment.size());
            if (detail) {
                TimestampOffset newest = segment.readMaxTimestampAndOffsetSoFar();
                OptionalLong largest = segment.largestRecordTimestamp();
                line.put("offset_index_entries", segment.offsetIndex().entries());
                line.put("time_index_entries", segment.timeIndex().entries());
                line.put("max_timestamp", largest.isPresent() ? newest.timestamp() : RecordBatch.NO_TIMESTAMP);
                line.put("next_offset", segment.readNextOffset());
            }
            segments.add(line);
        }
        return segments;
    }
}
