package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.tools.DumpLogSegments;

import java.util.Map;

/** Kafka's dump tool. */
final class Dump {
    private Dump() {
    }

    static Map<String, Object> run(JsonNode request) {
        return Tool.run(DumpLogSegments::main, Json.list(Json.need(request, "args")));
    }
}
