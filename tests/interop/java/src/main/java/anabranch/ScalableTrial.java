package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.auth.PemFileKeyProvider;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** One case of the V5 client: its topic, a client, and short forms of what most cases do. */
final class ScalableTrial {
    static final Duration PATIENCE = Duration.ofSeconds(20);
    static final SubscriptionInitialPosition START = SubscriptionInitialPosition.EARLIEST;

    final String topic;
    final String url;
    final String http;
    final PulsarClient client;
    private final Path publicKey;
    private final Path privateKey;

    ScalableTrial(JsonNode one, PulsarClient client) {
        topic = one.get("topic").asText();
        url = one.get("url").asText();
        http = one.get("http").asText();
        publicKey = Path.of(one.get("public").asText());
        privateKey = Path.of(one.get("private").asText());
        this.client = client;
    }

    PemFileKeyProvider keys() throws Exception {
        return PemFileKeyProvider.builder()
                .publicKey("app", publicKey)
                .privateKey("app", privateKey)
                .build();
    }

    static void check(boolean right, String what, Object found) {
        if (!right) {
            throw new AssertionError("not so: " + what + ", but " + found);
        }
    }

    static void equal(Object wanted, Object found) {
        check(wanted.equals(found), String.valueOf(wanted), found);
    }

    <T> QueueConsumerBuilder<T> queue(Schema<T> schema, String name) {
        return queueOf(schema, name).topic(topic);
    }

    /** A consumer without a topic yet. */
    <T> QueueConsumerBuilder<T> queueOf(Schema<T> schema, String name) {
        return client.newQueueConsumer(schema)
                .subscriptionName(name)
                .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(200)))
                .subscriptionInitialPosition(START);
    }

    Producer<String> producer() throws Exception {
        return producer(topic);
    }

    Producer<String> producer(String name) throws Exception {
        return client.newProducer(Schema.string()).topic(name).create();
    }

    static void send(Producer<String> producer, String... values) throws Exception {
        for (String value : values) {
            producer.newMessage().key("key").value(value).send();
        }
    }

    static <T> Message<T> receive(QueueConsumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(PATIENCE);
        check(message != null, "a message", "none came");
        return message;
    }

    static <T> List<T> take(QueueConsumer<T> consumer, int count) throws Exception {
        var values = new ArrayList<T>();
        for (int n = 0; n < count; n++) {
            Message<T> message = receive(consumer);
            values.add(message.value());
            consumer.acknowledge(message.id());
        }
        return values;
    }

    /** Receives until each value came; after the loss of a connection some may come twice. */
    static void takeAll(QueueConsumer<String> consumer, String... values) throws Exception {
        var missing = new HashSet<>(List.of(values));
        while (!missing.isEmpty()) {
            missing.removeAll(take(consumer, 1));
        }
    }
}
