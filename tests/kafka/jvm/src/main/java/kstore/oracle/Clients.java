package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeProducersResult.PartitionProducerState;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;

/**
 * Kafka's own clients. Every request names the broker ("bootstrap"). Producers stay open under the name that a request gives them, across
 * restarts of the broker too; so does the admin client. What a broker refuses is reported as the refusal, not as an ExecutionException.
 */
final class Clients {
    private static final int TIMEOUT_MS = 120_000;

    private final Map<String, Admin> admins = new HashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    void register(Map<String, Main.Operation> operations) {
        operations.put("create_topics", this::createTopics);
        operations.put("delete_records", this::deleteRecords);
        operations.put("list_offsets", this::listOffsets);
        operations.put("producer_states", this::producerStates);
        operations.put("produce", this::produce);
        operations.put("consume", this::consume);
        operations.put("first_at", this::firstAt);
        operations.put("commit", this::commit);
        operations.put("committed", this::committed);
    }

    private static Map<String, Object> common(JsonNode request) {
        Map<String, Object> config = new LinkedHashMap<>();
        config.put("bootstrap.servers", Json.text(request, "bootstrap"));
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 100);
        config.put("retry.backoff.ms", 20);
        config.put("default.api.timeout.ms", TIMEOUT_MS);
        config.putAll(Json.strings(request.get("config")));
        return config;
    }

    private static TopicPartition partition(JsonNode request) {
        return new TopicPartition(Json.text(request, "topic"), Json.integer(request, "partition", 0));
    }

    private static <T> T outcome(Future<T> future) throws Exception {
        try {
            return future.get();
        } catch (ExecutionException e) {
            throw e.getCause() instanceof Exception cause ? cause : e;
        }
    }

    private Admin admin(JsonNode request) {
        return admins.computeIfAbsent(Json.text(request, "bootstrap"), unused -> Admin.create(common(request)));
    }

    /** The topics' ids. "topics" maps names to {"partitions": n, "config": {...}}. */
    private Object createTopics(JsonNode request) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        Json.need(request, "topics").fields().forEachRemaining(entry -> topics.add(
            new NewTopic(entry.getKey(), Json.integer(entry.getValue(), "partitions", 1), (short) 1)
                .configs(Json.strings(entry.getValue().get("config")))));
        CreateTopicsResult result = admin(request).createTopics(topics);
        outcome(result.all());
        Map<String, Object> ids = new LinkedHashMap<>();
        for (NewTopic topic : topics)
            ids.put(topic.name(), outcome(result.topicId(topic.name())).toString());
        return ids;
    }

    private Object deleteRecords(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        RecordsToDelete before = RecordsToDelete.beforeOffset(Json.number(request, "before"));
        return outcome(admin(request).deleteRecords(Map.of(partition, before)).lowWatermarks().get(partition)).lowWatermark();
    }

    /** Offset, timestamp and leader epoch for each of "at": timestamps, or "earliest", "latest", "max_timestamp". */
    private Object listOffsets(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        List<Object> answers = new ArrayList<>();
        for (JsonNode at : Json.need(request, "at")) {
            OffsetSpec spec = switch (at.asText()) {
                case "earliest" -> OffsetSpec.earliest();
                case "latest" -> OffsetSpec.latest();
                case "max_timestamp" -> OffsetSpec.maxTimestamp();
                default -> OffsetSpec.forTimestamp(at.longValue());
            };
            ListOffsetsResultInfo found = outcome(admin(request).listOffsets(Map.of(partition, spec)).partitionResult(partition));
            answers.add(Json.map("offset", found.offset(), "timestamp", found.timestamp(), "leader_epoch", found.leaderEpoch().orElse(null)));
        }
        return answers;
    }

    /** What the broker knows of the producers of a partition. */
    private Object producerStates(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        PartitionProducerState state = outcome(admin(request).describeProducers(List.of(partition)).partitionResult(partition));
        List<Object> states = new ArrayList<>();
        for (ProducerState each : state.activeProducers())
            states.add(Json.map("producer_id", each.producerId(), "producer_epoch", each.producerEpoch(), "last_sequence",
                each.lastSequence()));
        return states;
    }

    /** Sends "records" with the producer that has this "name", or a new one with "config"; their offsets once all are acknowledged. */
    private Object produce(JsonNode request) throws Exception {
        String name = Json.text(request, "name");
        KafkaProducer<byte[], byte[]> producer = producers.computeIfAbsent(name, unused -> {
            Map<String, Object> config = common(request);
            config.remove("default.api.timeout.ms");
            config.putIfAbsent("delivery.timeout.ms", String.valueOf(TIMEOUT_MS));
            config.putIfAbsent("request.timeout.ms", String.valueOf(TIMEOUT_MS / 2));
            config.putIfAbsent("linger.ms", "10");
            KafkaProducer<byte[], byte[]> made = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
            if (config.containsKey("transactional.id"))
                made.initTransactions();
            return made;
        });
        String end = Json.text(request, "transaction", null);  // "commit" or "abort"
        if (end != null)
            producer.beginTransaction();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : Json.need(request, "records")) {
            Long timestamp = Json.given(record, "timestamp") ? record.get("timestamp").longValue() : null;
            Integer partition = Json.given(request, "partition") ? request.get("partition").intValue() : null;
            sent.add(producer.send(new ProducerRecord<>(Json.text(request, "topic"), partition, timestamp, Json.bytes(record.get("key")),
                Json.bytes(record.get("value")), List.of(Batches.headers(record.get("headers"))))));
        }
        producer.flush();
        List<Object> offsets = new ArrayList<>();
        for (Future<RecordMetadata> future : sent) {
            RecordMetadata metadata = outcome(future);
            offsets.add(List.of(metadata.partition(), metadata.offset()));
        }
        if ("commit".equals(end))
            producer.commitTransaction();
        else if ("abort".equals(end))
            producer.abortTransaction();
        return offsets;
    }

    /** Every record of a partition from "offset", or from the start, to the end as the consumer sees it. */
    private Object consume(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request)) {
            consumer.assign(List.of(partition));
            if (Json.given(request, "offset"))
                consumer.seek(partition, Json.number(request, "offset"));
            else
                consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            long deadline = System.currentTimeMillis() + TIMEOUT_MS;
            List<Object> records = new ArrayList<>();
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                    records.add(line(record));
                if (System.currentTimeMillis() > deadline)
                    throw new TimeoutException("the consumer is at " + consumer.position(partition) + ", the end is " + end);
            }
            return records;
        }
    }

    /** The first record that a consumer gets from each of "offsets", null for none; or the name of what it got instead. */
    private Object firstAt(JsonNode request) throws Exception {
        TopicPartition partition = partition(request);
        List<Object> answers = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(request, "max.poll.records", "1", "max.partition.fetch.bytes", "1")) {
            consumer.assign(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            for (JsonNode offset : Json.need(request, "offsets")) {
                consumer.seek(partition, offset.longValue());
                Object answer = null;
                try {
                    for (long deadline = System.currentTimeMillis() + TIMEOUT_MS; answer == null && consumer.position(partition) < end;) {
                        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100)))
                            answer = answer == null ? line(record) : answer;
                        if (System.currentTimeMillis() > deadline)
                            throw new TimeoutException("nothing at " + offset + ", the end is " + end);
                    }
                } catch (InvalidOffsetException e) {
                    answer = e.getClass().getSimpleName();
                }
                answers.add(answer);
            }
        }
        return answers;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(JsonNode request, Object... settings) {
        Map<String, Object> config = common(request);
        config.putAll(Json.map(settings));
        config.putIfAbsent("auto.offset.reset", "none");
        config.putIfAbsent("enable.auto.commit", "false");
        config.putIfAbsent("check.crcs", "true");
        config.putIfAbsent("fetch.max.wait.ms", "50");
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Map<String, Object> line(ConsumerRecord<byte[], byte[]> record) {
        List<Object> headers = new ArrayList<>();
        for (Header header : record.headers())
            headers.add(java.util.Arrays.asList(header.key(), base64(header.value())));
        return Json.map("offset", record.offset(), "timestamp", record.timestamp(), "key", base64(record.key()), "value",
            base64(record.value()), "headers", headers, "leader_epoch", record.leaderEpoch().orElse(null));
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Json.base64(ByteBuffer.wrap(bytes));
    }

    /** Commits an offset for the "group". */
    private Object commit(JsonNode request) throws Exception {
        OffsetAndMetadata offset = new OffsetAndMetadata(Json.number(request, "offset"), Optional.empty(), Json.text(request, "metadata", ""));
        outcome(admin(request).alterConsumerGroupOffsets(Json.text(request, "group"), Map.of(partition(request), offset)).all());
        return null;
    }

    /** The offset that the "group" committed, null for none. */
    private Object committed(JsonNode request) throws Exception {
        OffsetAndMetadata found = outcome(
            admin(request).listConsumerGroupOffsets(Json.text(request, "group")).partitionsToOffsetAndMetadata()).get(partition(request));
        return found == null ? null : Json.map("offset", found.offset(), "metadata", found.metadata());
    }
}
