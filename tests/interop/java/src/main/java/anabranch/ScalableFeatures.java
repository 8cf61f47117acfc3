package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.Producer;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.QueueConsumer;
import org.apache.pulsar.client.api.v5.QueueConsumerBuilder;
import org.apache.pulsar.client.api.v5.auth.PemFileKeyProvider;
import org.apache.pulsar.client.api.v5.config.BackoffPolicy;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.ConsumerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * Tries the usual features of the V5 client: a case per line of standard input, as JSON. The answer is a line with the
 * error of the case, or a line with a request: to restart the broker.
 */
public final class ScalableFeatures {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader LINES = new BufferedReader(new InputStreamReader(System.in));
    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static final SubscriptionInitialPosition START = SubscriptionInitialPosition.EARLIEST;

    /** What a case does; it throws when something is not as it must be. */
    private interface Feature {
        void run() throws Exception;
    }

    private final String topic;
    private final Path publicKey;
    private final Path privateKey;
    private final PulsarClient client;
    private final Map<String, Feature> features = new HashMap<>();

    private ScalableFeatures(JsonNode one, PulsarClient client) {
        topic = one.get("topic").asText();
        publicKey = Path.of(one.get("public").asText());
        privateKey = Path.of(one.get("private").asText());
        this.client = client;
        features.put("consumers", this::consumers);
        features.put("batching", this::batching);
        features.put("chunking", this::chunking);
        features.put("encryption", this::encryption);
        features.put("schemas", this::schemas);
        features.put("dead letter", this::deadLetter);
        features.put("delayed", this::delayed);
        features.put("restart", this::restart);
    }

    public static void main(String[] args) throws Exception {
        // One client for all cases: this milestone takes seconds to close one.
        PulsarClient client = null;
        for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
            JsonNode one = JSON.readTree(line);
            String error = "";
            try {
                if (client == null) {
                    client = PulsarClient.builder().serviceUrl(one.get("url").asText()).build();
                }
                new ScalableFeatures(one, client).features.get(one.get("case").asText()).run();
            } catch (Throwable failure) {
                failure.printStackTrace();
                error = failure.toString();
            }
            say(Map.of("error", error));
        }
    }

    private static void say(Map<String, String> what) throws Exception {
        System.out.println(JSON.writeValueAsString(what));
    }

    private static void check(boolean right, String what, Object found) {
        if (!right) {
            throw new AssertionError("not so: " + what + ", but " + found);
        }
    }

    private static void equal(Object wanted, Object found) {
        check(wanted.equals(found), String.valueOf(wanted), found);
    }

    private <T> QueueConsumerBuilder<T> queue(Schema<T> schema, String name) {
        return client.newQueueConsumer(schema)
                .topic(topic)
                .subscriptionName(name)
                .negativeAckRedeliveryBackoff(BackoffPolicy.exponential(Duration.ofMillis(50), Duration.ofMillis(200)))
                .subscriptionInitialPosition(START);
    }

    private Producer<String> producer() throws Exception {
        return client.newProducer(Schema.string()).topic(topic).create();
    }

    private static void send(Producer<String> producer, String... values) throws Exception {
        for (String value : values) {
            producer.newMessage().key("key").value(value).send();
        }
    }

    private static <T> Message<T> receive(QueueConsumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(PATIENCE);
        check(message != null, "a message", "none came");
        return message;
    }

    private static <T> List<T> take(QueueConsumer<T> consumer, int count) throws Exception {
        var values = new ArrayList<T>();
        for (int n = 0; n < count; n++) {
            Message<T> message = receive(consumer);
            values.add(message.value());
            consumer.acknowledge(message.id());
        }
        return values;
    }

    private void consumers() throws Exception {
        var stream = client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName("stream")
                .subscriptionInitialPosition(START)
                .subscribe();
        send(producer(), "a", "b");
        equal(List.of("a", "b"), take(queue(Schema.string(), "queue").subscribe(), 2));
        var all = stream.receive(PATIENCE);
        equal("a", all.value());
        stream.acknowledgeCumulative(all.id());
        equal("b", stream.receive(PATIENCE).value());
        var first = client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(Checkpoint.earliest());
        Checkpoint after;
        try (var reader = first.create()) {
            equal("a", reader.receive(PATIENCE).value());
            after = Checkpoint.fromByteArray(reader.checkpoint().toByteArray());
        }
        var second = client.newCheckpointConsumer(Schema.string()).topic(topic).startPosition(after);
        try (var reader = second.create()) {
            equal("b", reader.receive(PATIENCE).value());
        }
    }

    private void batching() throws Exception {
        var policy = BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(50)).build();
        var producer = client.newProducer(Schema.string()).topic(topic).batchingPolicy(policy).create();
        var wanted = new HashMap<String, List<String>>();
        for (int n = 0; n < 60; n++) {
            String key = "key-" + n % 6;
            wanted.computeIfAbsent(key, k -> new ArrayList<>()).add(String.valueOf(n));
            producer.async().newMessage().key(key).value(String.valueOf(n)).send();
        }
        producer.async().flush().get();
        var stream = client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName("s")
                .subscriptionInitialPosition(START)
                .subscribe();
        var got = new HashMap<String, List<String>>();
        for (int n = 0; n < 60; n++) {
            var message = stream.receive(PATIENCE);
            got.computeIfAbsent(message.key().orElseThrow(), k -> new ArrayList<>()).add(message.value());
        }
        equal(wanted, got);
    }

    private void chunking() throws Exception {
        var producer = client.newProducer(Schema.bytes())
                .topic(topic)
                .batchingPolicy(BatchingPolicy.ofDisabled())
                .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(1 << 20).build())
                .create();
        byte[] value = new byte[12 << 20];
        Arrays.fill(value, (byte) 7);
        producer.newMessage().value(value).send();
        var consumer = queue(Schema.bytes(), "s").subscribe();
        check(Arrays.equals(value, receive(consumer).value()), "the large message", "another one");
    }

    private void encryption() throws Exception {
        var keys = PemFileKeyProvider.builder()
                .publicKey("app", publicKey)
                .privateKey("app", privateKey)
                .build();
        var consumer = queue(Schema.string(), "s")
                .encryptionPolicy(ConsumerEncryptionPolicy.builder().privateKeyProvider(keys).build())
                .subscribe();
        var producer = client.newProducer(Schema.string())
                .topic(topic)
                .encryptionPolicy(ProducerEncryptionPolicy.builder()
                        .publicKeyProvider(keys)
                        .keyName("app")
                        .build())
                .create();
        send(producer, "a", "b");
        equal(List.of("a", "b"), take(consumer, 2));
    }

    /** The first version of a record. */
    public static class Before {
        /** Versions of a record have one name. */
        public static class Thing {
            public String name;
        }
    }

    /** The next version, with one more field. */
    public static class After {
        /** As the first version, and more. */
        public static class Thing {
            public String name;
            public String colour;
        }
    }

    private void schemas() throws Exception {
        var old = new Before.Thing();
        old.name = "a";
        client.newProducer(Schema.avro(Before.Thing.class)).topic(topic).create().newMessage().value(old).send();
        var next = new After.Thing();
        next.name = "b";
        next.colour = "blue";
        client.newProducer(Schema.avro(After.Thing.class)).topic(topic).create().newMessage().value(next).send();
        var consumer = queue(Schema.avro(After.Thing.class), "s").subscribe();
        equal("a", receive(consumer).value().name);
        equal("blue", receive(consumer).value().colour);
        try {
            send(producer(), "text");
            throw new AssertionError("another type is not refused");
        } catch (PulsarClientException expected) {
            check(expected.getMessage() != null, "a reason", expected);
        }
    }

    private void deadLetter() throws Exception {
        String letters = topic + "-dead";
        var policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(2)
                .deadLetterTopic(letters)
                .initialSubscriptionName("look")
                .build();
        var consumer = queue(Schema.string(), "s").deadLetterPolicy(policy).subscribe();
        send(producer(), "bad");
        for (int n = 0; n < 3; n++) {
            consumer.negativeAcknowledge(receive(consumer).id());
        }
        var dead = client.newQueueConsumer(Schema.string())
                .topic(letters)
                .subscriptionName("look")
                .subscriptionInitialPosition(START)
                .subscribe();
        equal(List.of("bad"), take(dead, 1));
    }

    private void delayed() throws Exception {
        var consumer = queue(Schema.string(), "s").subscribe();
        var producer = producer();
        long began = System.nanoTime();
        producer.newMessage().value("later").deliverAfter(Duration.ofMillis(700)).send();
        producer.newMessage().value("now").send();
        equal(List.of("now", "later"), take(consumer, 2));
        check(System.nanoTime() - began >= 650_000_000L, "the delay", System.nanoTime() - began);
    }

    private void restart() throws Exception {
        var consumer = queue(Schema.string(), "s").subscribe();
        var producer = producer();
        send(producer, "a");
        say(Map.of("ask", "restart"));
        LINES.readLine();
        send(producer, "b");
        // The first message may come twice.
        while (!take(consumer, 1).get(0).equals("b")) {}
    }
}
