package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;

/** Reading requests and building answers. */
final class Json {
    private Json() {
    }

    static JsonNode need(JsonNode request, String field) {
        JsonNode value = request.get(field);
        if (value == null)
            throw new NoSuchElementException("the request has no field " + field);
        return value;
    }

    static boolean given(JsonNode request, String field) {
        return request.hasNonNull(field);
    }

    static String text(JsonNode request, String field) {
        return need(request, field).asText();
    }

    static String text(JsonNode request, String field, String otherwise) {
        return given(request, field) ? request.get(field).asText() : otherwise;
    }

    static long number(JsonNode request, String field) {
        return need(request, field).longValue();
    }

    static long number(JsonNode request, String field, long otherwise) {
        return given(request, field) ? request.get(field).longValue() : otherwise;
    }

    static int integer(JsonNode request, String field, int otherwise) {
        return Math.toIntExact(number(request, field, otherwise));
    }

    static boolean flag(JsonNode request, String field, boolean otherwise) {
        return given(request, field) ? request.get(field).booleanValue() : otherwise;
    }

    /** Base64 to bytes; null stays null. */
    static byte[] bytes(JsonNode value) {
        return value == null || value.isNull() ? null : Base64.getDecoder().decode(value.asText());
    }

    static String base64(ByteBuffer buffer) {
        if (buffer == null)
            return null;
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    static Map<String, String> strings(JsonNode object) {
        Map<String, String> map = new LinkedHashMap<>();
        if (object != null)
            object.fields().forEachRemaining(entry -> map.put(entry.getKey(), entry.getValue().asText()));
        return map;
    }

    static List<String> list(JsonNode array) {
        List<String> items = new ArrayList<>();
        array.forEach(item -> items.add(item.asText()));
        return items;
    }

    /** A map from alternating names and values that keeps their order and allows null. */
    static Map<String, Object> map(Object... namesAndValues) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2)
            map.put((String) namesAndValues[i], namesAndValues[i + 1]);
        return map;
    }
}
