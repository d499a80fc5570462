package kstore.oracle;

import com.fasterxml.jackson.databind.JsonNode;

import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;

import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.tools.DeleteRecordsCommand;
import org.apache.kafka.tools.GetOffsetShell;
import org.apache.kafka.tools.ProducerPerformance;
import org.apache.kafka.tools.TopicCommand;
import org.apache.kafka.tools.consumer.ConsoleConsumer;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

import org.slf4j.LoggerFactory;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;

/**
 * A whole broker in this process, combined with its controller, and the clients that talk to it. It takes the same kind of requests as
 * Main, and the names of Kafka's shell scripts as operations of their own ("script"), so that a page's commands can be run as they stand.
 */
public final class Broker {
    private static final Map<String, Tool.Main> SCRIPTS = Map.of(
        "kafka-storage.sh", StorageTool::main,
        "kafka-topics.sh", TopicCommand::main,
        "kafka-get-offsets.sh", GetOffsetShell::main,
        "kafka-delete-records.sh", DeleteRecordsCommand::main,
        "kafka-consumer-groups.sh", ConsumerGroupCommand::main,
        "kafka-console-consumer.sh", ConsoleConsumer::main,
        "kafka-producer-perf-test.sh", ProducerPerformance::main);

    private KafkaRaftServer server;

    private Broker() {
    }

    public static void main(String[] args) throws Exception {
        LoggerFactory.getLogger(Broker.class);  // before a script can take standard error over, which belongs to the log
        Broker broker = new Broker();
        Map<String, Main.Operation> operations = new LinkedHashMap<>();
        operations.put("start", broker::start);
        operations.put("stop", broker::stop);
        operations.put("script", broker::script);
        new Clients().register(operations);
        new Main(operations).serve();
    }

    /** Returns when the broker takes requests; what keeps it from starting leaves here, and all that was started is stopped. */
    private Object start(JsonNode request) throws Exception {
        KafkaConfig config = KafkaConfig.fromProps(Utils.loadProps(Json.text(request, "properties")), false);
        KafkaRaftServer starting = new KafkaRaftServer(config, Time.SYSTEM);
        try {
            starting.startup();
        } catch (Throwable e) {
            starting.shutdown();
            throw e;
        }
        server = starting;
        return null;
    }

    private Object stop(JsonNode request) {
        server.shutdown();
        server.awaitShutdown();
        server = null;
        return null;
    }

    private Object script(JsonNode request) {
        List<String> args = Json.list(Json.need(request, "args"));
        Tool.Main tool = SCRIPTS.get(Json.text(request, "name"));
        if (tool == null)
            throw new NoSuchElementException("no script " + Json.text(request, "name") + ", but " + SCRIPTS.keySet());
        return Tool.run(tool, args);
    }
}
