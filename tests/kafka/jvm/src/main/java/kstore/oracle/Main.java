package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.requests.ProduceResponse.RecordError;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.storage.internals.log.RecordValidationException;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;

/**
 * Kafka's log, steered from outside: each line of standard input is a JSON request, each is answered by one line, {"ok": value} or
 * {"error": {...}}. A request names an operation ("op"), and most name a log ("log") that "open" has opened. Nothing happens between
 * requests: the clock and the background tasks of each log belong to the test.
 */
public final class Main {
    /** An operation: what it answers becomes JSON. */
    interface Operation {
        Object run(JsonNode request) throws Exception;
    }

    private final Map<String, Operation> operations = new LinkedHashMap<>();

    Main(Map<String, Operation> operations) {
        this.operations.putAll(operations);
        this.operations.put("ping", request -> Json.map("operations", this.operations.keySet(), "java", System.getProperty("java.version")));
    }

    public static void main(String[] args) throws Exception {
        Map<String, Operation> operations = new LinkedHashMap<>();
        operations.put("encode", request -> Json.base64(Batches.encode(request)));
        operations.put("records", request -> Batches.records(new java.io.File(Json.text(request, "path"))));
        operations.put("dump", Dump::run);
        operations.put("murmur2", request -> murmur2(Json.list(Json.need(request, "keys"))));
        new Logs().register(operations);
        new Main(operations).serve();
    }

    /** Answers requests until standard input ends, and then the process. */
    void serve() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(FileDescriptor.in), StandardCharsets.UTF_8));
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(new FileOutputStream(FileDescriptor.out), StandardCharsets.UTF_8));
        System.setOut(System.err);  // the answers' pipe belongs to the answers
        ObjectMapper mapper = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.write(mapper.writeValueAsString(answer(mapper.readTree(line))));
            out.write('\n');
            out.flush();
        }
        // Kafka's metrics leave threads that would keep the process alive.
        System.exit(0);
    }

    /** The hash of each key (base64), and the partition of 50 that a producer would send it to. */
    private static List<List<Integer>> murmur2(List<String> keys) {
        List<List<Integer>> found = new ArrayList<>();
        for (String key : keys) {
            byte[] bytes = Base64.getDecoder().decode(key);
            found.add(List.of(Utils.murmur2(bytes), BuiltInPartitioner.partitionForKey(bytes, 50)));
        }
        return found;
    }

    private Map<String, Object> answer(JsonNode request) {
        try {
            String name = Json.text(request, "op");
            Operation operation = operations.get(name);
            if (operation == null)
                throw new NoSuchElementException("no operation " + name + ", but " + operations.keySet());
            return Json.map("ok", operation.run(request));
        } catch (Throwable e) {
            return Json.map("error", describe(e));
        }
    }

    static Map<String, Object> describe(Throwable e) {
        Map<String, Object> error = Json.map("class", e.getClass().getSimpleName(), "message", e.getMessage());
        if (e instanceof RecordValidationException invalid) {
            error.put("invalid", invalid.invalidException().getClass().getSimpleName());
            List<Object> records = new ArrayList<>();
            for (RecordError record : invalid.recordErrors())
                records.add(Json.map("index", record.batchIndex, "message", record.message));
            error.put("records", records);
        }
        if (e.getCause() != null)
            error.put("cause", e.getCause().getClass().getSimpleName());
        List<String> where = new ArrayList<>();
        for (StackTraceElement frame : e.getStackTrace())
            if (where.size() < 8)
                where.add(frame.toString());
        error.put("where", where);
        return error;
    }
}
