package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** One case: its topic, a client, and short forms of what most cases do. */
final class Trial implements AutoCloseable {
    static final int PATIENCE_S = 20;

    final String topic;
    final String url;
    final String http;
    final String publicKey;
    final String privateKey;
    final PulsarClient client;

    Trial(JsonNode one) throws Exception {
        topic = one.get("topic").asText();
        url = one.get("url").asText();
        http = one.get("http").asText();
        publicKey = one.get("public").asText();
        privateKey = one.get("private").asText();
        client = connect(url);
    }

    static PulsarClient connect(String url) throws Exception {
        return PulsarClient.builder()
                .serviceUrl(url)
                .operationTimeout(PATIENCE_S, TimeUnit.SECONDS)
                .build();
    }

    @Override
    public void close() throws Exception {
        client.close();
    }

    static void check(boolean right, String what, Object... found) {
        if (!right) {
            throw new AssertionError("not so: " + what + ", but " + List.of(found));
        }
    }

    static void equal(Object wanted, Object found) {
        check(wanted.equals(found), String.valueOf(wanted), found);
    }

    /** Waits for something that comes soon. */
    static void until(String what, Callable<Boolean> right) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!right.call()) {
            check(System.nanoTime() < end, what, "it did not come");
            Thread.sleep(20);
        }
    }

    org.apache.pulsar.client.api.Consumer<String> subscribe(String name, SubscriptionType type) throws Exception {
        return subscribe(name, type, builder -> {});
    }

    org.apache.pulsar.client.api.Consumer<String> subscribe(
            String name, SubscriptionType type, Consumer<ConsumerBuilder<String>> change) throws Exception {
        var builder = client.newConsumer(Schema.STRING)
                .topic(topic)
                .subscriptionName(name)
                .subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .negativeAckRedeliveryDelay(50, TimeUnit.MILLISECONDS);
        change.accept(builder);
        return builder.subscribe();
    }

    Producer<String> producer() throws Exception {
        return producer(builder -> {});
    }

    Producer<String> producer(Consumer<ProducerBuilder<String>> change) throws Exception {
        var builder = client.newProducer(Schema.STRING).topic(topic).enableBatching(false);
        change.accept(builder);
        return builder.create();
    }

    static List<MessageId> send(Producer<String> producer, String... values) throws Exception {
        var ids = new ArrayList<MessageId>();
        for (String value : values) {
            ids.add(producer.newMessage().key(value).value(value).send());
        }
        return ids;
    }

    static <T> Message<T> receive(org.apache.pulsar.client.api.Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(PATIENCE_S, TimeUnit.SECONDS);
        check(message != null, "a message", "none came");
        return message;
    }

    /** Receives and acknowledges this many messages. */
    static <T> List<T> take(org.apache.pulsar.client.api.Consumer<T> consumer, int count) throws Exception {
        var values = new ArrayList<T>();
        for (int n = 0; n < count; n++) {
            Message<T> message = receive(consumer);
            values.add(message.getValue());
            consumer.acknowledge(message);
        }
        return values;
    }

    static <T extends Comparable<T>> List<T> sorted(List<T> values) {
        return values.stream().sorted().toList();
    }
}
