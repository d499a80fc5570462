package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;

/** Batches from lists of records, by Kafka's own builder, and records from files, by Kafka's own reader. */
final class Batches {
    private Batches() {
    }

    /** One batch. Records are objects with timestamp, key, value, headers, and perhaps an offset; "marker" makes a control batch. */
    static ByteBuffer encode(JsonNode request) {
        long baseOffset = Json.number(request, "base_offset", 0);
        int leaderEpoch = Json.integer(request, "leader_epoch", RecordBatch.NO_PARTITION_LEADER_EPOCH);
        long producerId = Json.number(request, "producer_id", RecordBatch.NO_PRODUCER_ID);
        short producerEpoch = (short) Json.integer(request, "producer_epoch", RecordBatch.NO_PRODUCER_EPOCH);
        if (Json.given(request, "marker")) {
            EndTransactionMarker marker = new EndTransactionMarker(
                ControlRecordType.valueOf(Json.text(request, "marker").toUpperCase()), Json.integer(request, "coordinator_epoch", 0));
            return MemoryRecords.withEndTransactionMarker(
                baseOffset, Json.number(request, "timestamp"), leaderEpoch, producerId, producerEpoch, marker).buffer();
        }
        ByteBufferOutputStream out = new ByteBufferOutputStream(1024);
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(out,
            (byte) Json.integer(request, "magic", RecordBatch.CURRENT_MAGIC_VALUE),
            compression(Json.text(request, "compression", "none"), request.get("level")),
            TimestampType.forName(Json.text(request, "timestamp_type", "CreateTime")),
            baseOffset,
            Json.number(request, "log_append_time", RecordBatch.NO_TIMESTAMP),
            producerId,
            producerEpoch,
            Json.integer(request, "base_sequence", RecordBatch.NO_SEQUENCE),
            Json.flag(request, "transactional", false),
            false,
            leaderEpoch,
            Integer.MAX_VALUE,
            Json.number(request, "delete_horizon_ms", RecordBatch.NO_TIMESTAMP));
        long offset = baseOffset;
        for (JsonNode item : Json.need(request, "records")) {
            offset = Json.number(item, "offset", offset);
            builder.appendWithOffset(offset++, new SimpleRecord(
                Json.number(item, "timestamp"), Json.bytes(item.get("key")), Json.bytes(item.get("value")), headers(item.get("headers"))));
        }
        if (Json.given(request, "last_offset"))
            builder.overrideLastOffset(Json.number(request, "last_offset"));
        return builder.build().buffer();
    }

    private static Compression compression(String name, JsonNode level) {
        if (level == null || level.isNull())
            return switch (name) {
                case "none" -> Compression.NONE;
                case "gzip" -> Compression.gzip().build();
                case "snappy" -> Compression.snappy().build();
                case "lz4" -> Compression.lz4().build();
                case "zstd" -> Compression.zstd().build();
                default -> throw new IllegalArgumentException("no codec " + name);
            };
        return switch (name) {
            case "gzip" -> Compression.gzip().level(level.intValue()).build();
            case "lz4" -> Compression.lz4().level(level.intValue()).build();
            case "zstd" -> Compression.zstd().level(level.intValue()).build();
            default -> throw new IllegalArgumentException("no levels in " + name);
        };
    }

    static Header[] headers(JsonNode pairs) {
        if (pairs == null || pairs.isNull())
            return Record.EMPTY_HEADERS;
        Header[] headers = new Header[pairs.size()];
        for (int i = 0; i < headers.length; i++)
            headers[i] = new RecordHeader(pairs.get(i).get(0).asText(), Json.bytes(pairs.get(i).get(1)));
        return headers;
    }

    /** Every record of one file, or of the .log files below a directory in order of names: the fields of records.jsonl in golden data. */
    static List<Map<String, Object>> records(File path) throws IOException {
        List<Map<String, Object>> lines = new ArrayList<>();
        if (path.isDirectory()) {
            File[] files = path.listFiles((dir, name) -> name.endsWith(".log"));
            Arrays.sort(files, Comparator.comparing(File::getName));
            for (File file : files)
                readFile(file, lines);
        } else {
            readFile(path, lines);
        }
        return lines;
    }

    private static void readFile(File file, List<Map<String, Object>> lines) throws IOException {
        try (FileRecords log = FileRecords.open(file, false)) {
            for (RecordBatch batch : log.batches()) {
                boolean empty = true;
                for (Record record : batch) {
                    empty = false;
                    lines.add(line(file, batch, record));
                }
                if (empty)
                    lines.add(Json.map("segment", file.getName(), "emptyBatch", true, "batchBaseOffset", batch.baseOffset(),
                        "lastOffset", batch.lastOffset(), "baseSequence", batch.baseSequence(), "maxTimestamp", batch.maxTimestamp()));
            }
        } catch (Exception e) {
            lines.add(Json.map("segment", file.getName(), "error", e.getClass().getSimpleName()));
        }
    }

    private static Map<String, Object> line(File file, RecordBatch batch, Record record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers())
            headers.add(Arrays.asList(header.key(), header.value()));
        return Json.map(
            "segment", file.getName(),
            "batchBaseOffset", batch.baseOffset(),
            "offset", record.offset(),
            "timestamp", record.timestamp(),
            "timestampType", batch.timestampType().name,
            "key", Json.base64(record.key()),
            "value", Json.base64(record.value()),
            "headers", headers,
            "sequence", record.sequence(),
            "producerId", batch.producerId(),
            "producerEpoch", batch.producerEpoch(),
            "isTransactional", batch.isTransactional(),
            "isControl", batch.isControlBatch(),
            "compression", batch.compressionType().name,
            "magic", batch.magic(),
            "partitionLeaderEpoch", batch.partitionLeaderEpoch(),
            "valid", batch.isValid(),
            "batchMaxTimestamp", batch.maxTimestamp());
    }
}
