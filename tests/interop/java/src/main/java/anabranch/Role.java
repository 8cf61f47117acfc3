package anabranch;

import java.io.PrintStream;
import java.time.Duration;
import java.util.Base64;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.Message;
import org.apache.pulsar.client.api.v5.MessageId;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.config.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.v5.schema.Schema;

/**
 * One user of the V5 client: {@code Role <role> <service url> <topic> <argument>}.
 *
 * <p>Says on standard output, one JSON object a line, what it sent and received; the Python test that started it
 * judges. A producer ends by itself, a consumer when a line comes on its standard input.
 */
public final class Role {
    private static final int KEYS = 20;
    private static final int IN_FLIGHT = 50;
    private static final long PAUSE_MS = 5;
    private static final Duration POLL = Duration.ofMillis(200);
    private static final PrintStream OUT = System.out;

    public static void main(String[] args) throws Exception {
        String topic = args[2];
        String argument = args[3];
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[1]).build()) {
            switch (args[0]) {
                case "blocking" -> sendBlocking(client, topic, Integer.parseInt(argument));
                case "async" -> sendAsync(client, topic, Integer.parseInt(argument));
                case "stream" -> stream(client, topic, argument);
                case "queue" -> queue(client, topic, argument);
                case "checkpoint" -> checkpoint(client, topic, argument);
                default -> throw new IllegalArgumentException("no such role: " + args[0]);
            }
            say("done");
        }
    }

    private static void sendBlocking(PulsarClient client, String topic, int count) throws Exception {
        try (var producer = client.newProducer(Schema.string()).topic(topic).create()) {
            say("ready");
            for (int n = 0; n < count; n++) {
                String value = "blocking-" + n;
                MessageId id = producer.newMessage().key(key(n)).value(value).send();
                say("sent", "key", key(n), "value", value, "id", id.toString());
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static void sendAsync(PulsarClient client, String topic, int count) throws Exception {
        Semaphore window = new Semaphore(IN_FLIGHT);
        try (var producer = client.newProducer(Schema.string()).topic(topic).create()) {
            say("ready");
            for (int n = 0; n < count; n++) {
                String key = key(n);
                String value = "async-" + n;
                window.acquire();
                CompletableFuture<MessageId> sent = producer.async().newMessage().key(key).value(value).send();
                sent.whenComplete((id, error) -> {
                    if (error == null) {
                        say("sent", "key", key, "value", value, "id", id.toString());
                    } else {
                        say("failed", "key", key, "value", value, "error", error.toString());
                    }
                    window.release();
                });
                Thread.sleep(PAUSE_MS);
            }
            window.acquire(IN_FLIGHT);
        }
    }

    private static void stream(PulsarClient client, String topic, String subscription) throws Exception {
        try (var consumer = client.newStreamConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe()) {
            say("ready");
            while (wanted()) {
                Message<String> message = consumer.receive(POLL);
                if (message != null) {
                    sayReceived(message);
                    consumer.acknowledgeCumulative(message.id());
                }
            }
        }
    }

    private static void queue(PulsarClient client, String topic, String subscription) throws Exception {
        try (var consumer = client.newQueueConsumer(Schema.string())
                .topic(topic)
                .subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.EARLIEST)
                .subscribe()) {
            say("ready");
            while (wanted()) {
                Message<String> message = consumer.receive(POLL);
                if (message != null) {
                    sayReceived(message);
                    consumer.acknowledge(message.id());
                }
            }
        }
    }

    /** Reads on from {@code from}, "earliest" or what a former run said, and says at the end where it is. */
    private static void checkpoint(PulsarClient client, String topic, String from) throws Exception {
        Checkpoint start = from.equals("earliest")
                ? Checkpoint.earliest()
                : Checkpoint.fromByteArray(Base64.getDecoder().decode(from));
        try (var consumer = client.newCheckpointConsumer(Schema.string())
                .topic(topic)
                .startPosition(start)
                .create()) {
            say("ready");
            while (wanted()) {
                Message<String> message = consumer.receive(POLL);
                if (message != null) {
                    sayReceived(message);
                }
            }
            byte[] reached = consumer.checkpoint().toByteArray();
            say("checkpoint", "value", Base64.getEncoder().encodeToString(reached));
        }
    }

    private static String key(int n) {
        return "key-" + n % KEYS;
    }

    /** Whether nobody has said stop: a line on standard input. */
    private static boolean wanted() throws Exception {
        return System.in.available() == 0;
    }

    private static void sayReceived(Message<String> message) {
        say("received", "key", message.key().orElse(""), "value", message.value(), "id", message.id().toString());
    }

    private static synchronized void say(String event, String... fields) {
        StringBuilder line = new StringBuilder("{\"event\": \"").append(event).append('"');
        line.append(", \"at_ms\": ").append(System.currentTimeMillis());
        for (int i = 0; i < fields.length; i += 2) {
            String text = fields[i + 1].replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
            line.append(", \"").append(fields[i]).append("\": \"").append(text).append('"');
        }
        OUT.println(line.append('}'));
        OUT.flush();
    }

    private Role() {}
}
