package kstore.oracle;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.OffsetIndex;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Kafka's answers to the questions that bench/ asks: `Bench QUESTION DIRECTORY SCALE [THREADS [turns]]` prints {"operations", "size_bytes",
 * "rounds"}, seconds of each round after as much warm-up as it takes to compile the hot loops. Values of 100 bytes, no keys; nothing is
 * synced. THREADS is of the reading questions, 1 unless told: each reads the whole segment, and all their records count. With "turns" it
 * prints {"operations", "size_bytes"} after the warm-up, then waits for a line before each round, and prints the seconds of that round.
 */
public final class Bench {
    private static final long START_MS = 1_700_000_000_000L;
    private static final int ROUNDS = 5;
    private static final int SEGMENTS = 1000;

    private final File root;
    private final double scale;
    private final int threads;
    private final boolean turns;
    private final KafkaScheduler scheduler = new KafkaScheduler(1, true, "bench-");
    private final byte[] value = new byte[100];
    private int logs;
    /** What loops compute ends up here, so that nothing is optimised away. */
    private long sink;

    private Bench(File root, double scale, int threads, boolean turns) {
        this.root = root;
        this.scale = scale;
        this.threads = threads;
        this.turns = turns;
        new SplittableRandom(20_240_501).nextBytes(value);
        scheduler.startup();
    }

    private interface Round {
        /** Does the work once; seconds of it. */
        double run() throws Exception;
    }

    private static double since(long start) {
        return (System.nanoTime() - start) / 1e9;
    }

    public static void main(String[] args) throws Exception {
        Bench bench = new Bench(new File(args[1]), Double.parseDouble(args[2]), args.length > 3 ? Integer.parseInt(args[3]) : 1,
            args.length > 4 && args[4].equals("turns"));
        Map<String, Object> answer = switch (args[0]) {
            case "append-one" -> bench.append(1, 300_000);
            case "append-16k" -> bench.append(bench.recordsIn(16 << 10), 30_000);
            case "append-1m" -> bench.append(bench.recordsIn(1 << 20), 500);
            case "read-16k" -> bench.read(bench.recordsIn(16 << 10));
            case "read-1m" -> bench.read(bench.recordsIn(1 << 20));
            case "offset-for-timestamp" -> bench.offsetForTimestamp();
            case "recover" -> bench.recover();
            case "open-clean" -> bench.openMany(true, true);
            case "open-last" -> bench.openMany(false, true);
            case "open-unclean" -> bench.openMany(false, false);
            case "index-lookup" -> bench.indexLookup();
            case "compact" -> bench.compact();
            case "offset-map-new" -> bench.offsetMap(1, 0.9);
            case "offset-map-twice" -> bench.offsetMap(2, 0.9);
            default -> throw new IllegalArgumentException("no question " + args[0]);
        };
        System.out.println(new ObjectMapper().writeValueAsString(answer));
        System.exit(0);
    }

    private int scaled(int count) {
        return Math.max(1, (int) (count * scale));
    }

    private Map<String, Object> measure(long operations, long bytes, int warmups, Round round) throws Exception {
        for (int i = 0; i < warmups; i++)
            round.run();
        List<Double> rounds = new ArrayList<>();
        if (turns) {
            System.out.println(new ObjectMapper().writeValueAsString(Json.map("operations", operations, "size_bytes", bytes)));
            BufferedReader told = new BufferedReader(new InputStreamReader(System.in));
            while (told.readLine() != null)
                System.out.println(round.run());
        } else {
            for (int i = 0; i < ROUNDS; i++)
                rounds.add(round.run());
        }
        return Json.map("operations", operations, "size_bytes", bytes, "rounds", rounds, "sink", sink);
    }

    private UnifiedLog open(File dir, boolean clean, long recoveryPoint, Map<String, Object> settings) throws IOException {
        Properties properties = new Properties();
        properties.putAll(settings);
        return UnifiedLog.create(dir, new LogConfig(properties), 0L, recoveryPoint, scheduler, new BrokerTopicStats(), Time.SYSTEM, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(10), clean, Optional.empty());
    }

    private File fresh() {
        return new File(root, "bench-" + logs++);
    }

    private ByteBuffer batch(int records, long baseOffset, long timestamp) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(61 + records * 120), RecordBatch.CURRENT_MAGIC_VALUE,
            Compression.NONE, TimestampType.CREATE_TIME, baseOffset, RecordBatch.NO_TIMESTAMP, 0);
        for (int i = 0; i < records; i++)
            builder.append(timestamp + i, null, value);
        return builder.build().buffer();
    }

    /** How many records fill a batch of that many bytes. */
    private int recordsIn(int bytes) {
        int records = (bytes - DefaultRecordBatch.RECORD_BATCH_OVERHEAD) / (value.length + 14);
        while (batch(records + 1, 0, START_MS).remaining() <= bytes)
            records++;
        return records;
    }

    /** The same ready batch appended as a leader again and again: checked, given its offsets in place, written. */
    private Map<String, Object> append(int recordsEach, int appends) throws Exception {
        ByteBuffer ready = batch(recordsEach, 0, System.currentTimeMillis());
        int count = scaled(appends);
        long[] records = new long[1];
        Map<String, Object> answer = measure(count, (long) count * ready.remaining(), 2, () -> {
            File dir = fresh();
            UnifiedLog log = open(dir, true, 0, Map.of("segment.ms", Long.toString(Long.MAX_VALUE)));
            long start = System.nanoTime();
            for (int i = 0; i < count; i++) {
                ready.putLong(0, 0L);
                log.appendAsLeader(MemoryRecords.readableRecords(ready.duplicate()), 0);
            }
            double seconds = since(start);
            log.close();
            if (records[0] == 0)
                records[0] = recordsOf(dir);
            Utils.delete(dir);
            return seconds;
        });
        answer.put("records", records[0]);
        return answer;
    }

    /** The records that are in the segment files of a directory, by their batches. */
    private static long recordsOf(File dir) throws IOException {
        long records = 0;
        for (File file : dir.listFiles((where, name) -> name.endsWith(".log")))
            try (FileRecords log = FileRecords.open(file, false)) {
                for (RecordBatch batch : log.batches())
                    records += batch.countOrNull();
            }
        return records;
    }

    /** A segment of `bytes` in batches of `recordsEach` records one millisecond apart, closed; the number of records. */
    private long fill(File dir, int recordsEach, long bytes) throws IOException {
        long records = 0;
        UnifiedLog log = open(dir, true, 0, Map.of("segment.bytes", Integer.toString(Integer.MAX_VALUE)));
        int chunk = Math.max(1, (1 << 20) / batch(recordsEach, 0, START_MS).remaining());
        while (log.size() < bytes) {
            ByteBuffer several = ByteBuffer.allocate((4 << 20) + (2 << 20));
            for (int i = 0; i < chunk; i++, records += recordsEach)
                several.put(batch(recordsEach, records, START_MS + records));
            log.appendAsFollower(MemoryRecords.readableRecords(several.flip()), 0);
        }
        log.updateHighWatermark(log.logEndOffset());
        log.close();
        return records;
    }

    /** Every record of a segment with its value, each batch's CRC checked first. */
    private Map<String, Object> read(int recordsEach) throws Exception {
        File dir = fresh();
        long records = fill(dir, recordsEach, (long) (256 * scale) << 20);
        File file = new File(dir, "00000000000000000000.log");
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        Callable<Long> one = () -> valuesOf(file);
        Map<String, Object> answer = measure(records * threads, records * threads * value.length, 2, () -> {
            long start = System.nanoTime();
            for (Future<Long> each : pool.invokeAll(Collections.nCopies(threads, one)))
                sink += each.get();
            return since(start);
        });
        pool.shutdown();
        return answer;
    }

    /** Goes over all records of a segment; the bytes of their values. */
    private static long valuesOf(File file) throws IOException {
        long bytes = 0;
        try (FileRecords log = FileRecords.open(file, false)) {
            int size = log.sizeInBytes();
            ByteBuffer buffer = ByteBuffer.allocate(4 << 20);
            for (int position = 0; position < size; ) {
                buffer.clear();
                log.slice(position, Math.min(buffer.capacity(), size - position)).readInto(buffer, 0);
                MemoryRecords chunk = MemoryRecords.readableRecords(buffer);
                for (RecordBatch batch : chunk.batches()) {
                    batch.ensureValid();
                    for (Record record : batch)
                        bytes += record.value().remaining();
                    position += batch.sizeInBytes();
                }
            }
        }
        return bytes;
    }

    private Map<String, Object> offsetForTimestamp() throws Exception {
        File dir = fresh();
        long records = fill(dir, recordsIn(16 << 10), (long) (1024 * scale) << 20);
        UnifiedLog log = open(dir, true, records, Map.of("segment.bytes", Integer.toString(Integer.MAX_VALUE)));
        int count = 20_000;
        return measure(count, 0, 3, () -> {
            long start = System.nanoTime();
            for (int i = 0; i < count; i++)
                sink += log.fetchOffsetByTimestamp(START_MS + i * 7_919L % records, Optional.empty()).timestampAndOffsetOpt().get().offset;
            return since(start);
        });
    }

    private Map<String, Object> recover() throws Exception {
        File dir = fresh();
        fill(dir, recordsIn(16 << 10), (long) (1024 * scale) << 20);
        long bytes = new File(dir, "00000000000000000000.log").length();
        return measure(1, bytes, 2, () -> {
            long start = System.nanoTime();
            UnifiedLog log = open(dir, false, 0, Map.of("segment.bytes", Integer.toString(Integer.MAX_VALUE)));
            double seconds = since(start);
            log.close();
            return seconds;
        });
    }

    /** A log of 1,000 segments; unclean, with the recovery point at the start of the last segment or at 0. */
    private Map<String, Object> openMany(boolean clean, boolean flushed) throws Exception {
        File dir = fresh();
        int count = SEGMENTS;
        UnifiedLog filled = open(dir, true, 0, Map.of());
        for (int i = 0; i < count; i++) {
            if (i > 0)
                filled.roll();
            for (int j = 0; j < 4; j++)
                filled.appendAsLeader(MemoryRecords.readableRecords(batch(140, 0, System.currentTimeMillis())), 0);
        }
        filled.close();
        long recoveryPoint = flushed ? (count - 1) * 560L : 0;
        return measure(1, 0, 2, () -> {
            long start = System.nanoTime();
            UnifiedLog log = open(dir, clean, recoveryPoint, Map.of());
            double seconds = since(start);
            log.close();
            return seconds;
        });
    }

    /** One round of the cleaner with a broker's default sizes over a copy of DIRECTORY/prepared-0, which the caller has filled and closed. */
    private Map<String, Object> compact() throws Exception {
        File prepared = new File(root, "prepared-0");
        long[] totals = new long[2];
        int slots = (128 << 20) / 24;
        Round round = () -> {
            File dir = fresh();
            copy(prepared, dir);
            UnifiedLog log = open(dir, true, Long.MAX_VALUE, Map.of("cleanup.policy", "compact"));
            log.updateHighWatermark(log.logEndOffset());
            long end = log.activeSegment().baseOffset();
            LogToClean all = new LogToClean(log, 0, end, true);
            Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(slots * 24), 256 << 10, 1_048_588, 0.9, throttler, Time.SYSTEM, partition -> {
            });
            long start = System.nanoTime();
            var cleaned = cleaner.clean(all);
            double seconds = since(start);
            if (cleaned.getKey() != end)
                throw new IllegalStateException("the map was full at " + cleaned.getKey());
            totals[0] = cleaned.getValue().mapMessagesRead();
            totals[1] = all.cleanableBytes();
            log.close();
            Utils.delete(dir);
            return seconds;
        };
        round.run();  // tells the totals
        return measure(totals[0], totals[1], 1, round);
    }

    /** The .log files are linked, since a cleaner replaces them; what an opening writes to is copied. */
    private static void copy(File from, File to) throws IOException {
        if (!to.mkdir())
            throw new IOException("no directory " + to);
        for (File file : from.listFiles()) {
            if (file.getName().endsWith(".log"))
                Files.createLink(new File(to, file.getName()).toPath(), file.toPath());
            else
                Files.copy(file.toPath(), new File(to, file.getName()).toPath());
        }
    }

    private Map<String, Object> indexLookup() throws Exception {
        File file = new File(root, "00000000000000000000.index");
        int entries = (10 << 20) / 8;
        OffsetIndex index = new OffsetIndex(file, 0, 10 << 20);
        for (int i = 1; i <= entries; i++)
            index.append(i * 50L, i * 600);
        int count = 1_000_000;
        return measure(count, 0, 3, () -> {
            SplittableRandom random = new SplittableRandom(1);
            long start = System.nanoTime();
            for (int i = 0; i < count; i++)
                sink += index.lookup(random.nextLong(entries * 50L)).position();
            return since(start);
        });
    }

    /** Keys of 16 bytes put into a cleaner's map of the default 128 MiB, each `times` times, until it is as full as a cleaner lets it be. */
    private Map<String, Object> offsetMap(int times, double loadFactor) throws Exception {
        SkimpyOffsetMap map = new SkimpyOffsetMap((int) (128 * scale) << 20);
        int keys = (int) (map.slots() * loadFactor);
        byte[] bytes = new byte[keys * 16];
        new SplittableRandom(7).nextBytes(bytes);
        return measure((long) keys * times, 0, 1, () -> {
            map.clear();
            long start = System.nanoTime();
            for (int i = 0; i < keys * times; i++)
                map.put(ByteBuffer.wrap(bytes, i % keys * 16, 16), i);
            double seconds = since(start);
            sink += map.latestOffset();
            return seconds;
        });
    }
}
