package anabranch;

import static anabranch.Trial.check;
import static anabranch.Trial.equal;
import static anabranch.Trial.receive;
import static anabranch.Trial.send;
import static anabranch.Trial.take;
import static anabranch.Trial.until;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerInterceptor;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.interceptor.ProducerInterceptor;
import org.apache.pulsar.client.api.schema.SchemaDefinition;

/** Cases about messages: how they are sent, and what becomes of them. */
final class Sending {
    static void chunking(Trial t) throws Exception {
        var consumer = t.client
                .newConsumer()
                .topic(t.topic)
                .subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared)
                .subscribe();
        var producer = t.client.newProducer().topic(t.topic).enableBatching(false).enableChunking(true).create();
        byte[] value = new byte[12 << 20];
        Arrays.fill(value, (byte) 7);
        producer.send(value);
        producer.send(new byte[] {1});
        var large = receive(consumer);
        check(Arrays.equals(value, large.getValue()), "the large message", large.size());
        consumer.acknowledge(large);
        equal(1, receive(consumer).getValue().length);
    }

    static void encryption(Trial t) throws Exception {
        var consumer = t.subscribe(
                "s",
                SubscriptionType.Exclusive,
                builder -> builder.defaultCryptoKeyReader("file://" + t.privateKey));
        var producer = t.producer(builder ->
                builder.addEncryptionKey("app").defaultCryptoKeyReader("file://" + t.publicKey));
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

    static void schemas(Trial t) throws Exception {
        evolve(t, t.topic + "-json", Schema.JSON(Before.Thing.class), Schema.JSON(After.Thing.class));
        evolve(t, t.topic + "-avro", avro(Before.Thing.class), avro(After.Thing.class));
    }

    private static <T> Schema<T> avro(Class<T> pojo) {
        return Schema.AVRO(SchemaDefinition.<T>builder().withPojo(pojo).build());
    }

    private static void evolve(Trial t, String topic, Schema<Before.Thing> before, Schema<After.Thing> after) throws Exception {
        var old = new Before.Thing();
        old.name = "a";
        t.client.newProducer(before).topic(topic).create().send(old);
        var next = new After.Thing();
        next.name = "b";
        next.colour = "blue";
        t.client.newProducer(after).topic(topic).create().send(next);
        var consumer = t.client
                .newConsumer(after)
                .topic(topic)
                .subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
        equal("a", receive(consumer).getValue().name);
        var second = receive(consumer);
        equal("blue", second.getValue().colour);
        check(second.getSchemaVersion() != null, "a version");
        var any = t.client
                .newConsumer(Schema.AUTO_CONSUME())
                .topic(topic)
                .subscriptionName("any")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribe();
        equal("a", receive(any).getValue().getField("name").toString());
        equal("blue", receive(any).getValue().getField("colour").toString());
        try {
            t.client.newProducer(Schema.STRING).topic(topic).create();
            throw new AssertionError("another type is not refused");
        } catch (PulsarClientException.IncompatibleSchemaException expected) {
            check(expected.getMessage() != null, "a reason");
        }
    }

    static void deadLetter(Trial t) throws Exception {
        var dead = t.subscribe("look", SubscriptionType.Shared, builder -> builder.topic(t.topic + "-dead"));
        var policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(2)
                .deadLetterTopic(t.topic + "-dead")
                .build();
        var consumer = t.subscribe("s", SubscriptionType.Shared, builder -> builder.deadLetterPolicy(policy));
        send(t.producer(), "bad");
        for (int n = 0; n < 3; n++) {
            consumer.negativeAcknowledge(receive(consumer));
        }
        equal(List.of("bad"), take(dead, 1));
    }

    static void retry(Trial t) throws Exception {
        var dead = t.subscribe("look", SubscriptionType.Shared, builder -> builder.topic(t.topic + "-dead"));
        var policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(1)
                .deadLetterTopic(t.topic + "-dead")
                .retryLetterTopic(t.topic + "-retry")
                .build();
        var consumer = t.subscribe(
                "s", SubscriptionType.Shared, builder -> builder.enableRetry(true).deadLetterPolicy(policy));
        send(t.producer(), "bad");
        consumer.reconsumeLater(receive(consumer), 300, TimeUnit.MILLISECONDS);
        var again = receive(consumer);
        check(again.getTopicName().contains("-retry"), "it comes from the retry topic", again.getTopicName());
        consumer.reconsumeLater(again, 100, TimeUnit.MILLISECONDS);
        equal(List.of("bad"), take(dead, 1));
    }

    /** Marks the messages that are sent, and counts their receipts. */
    private static final class Marking implements ProducerInterceptor {
        final AtomicInteger receipts = new AtomicInteger();

        @Override
        public void close() {}

        @Override
        public boolean eligible(Message message) {
            return true;
        }

        @Override
        public Message beforeSend(Producer producer, Message message) {
            ((org.apache.pulsar.client.impl.MessageImpl<?>) message)
                    .getMessageBuilder()
                    .addProperty()
                    .setKey("marked")
                    .setValue("yes");
            return message;
        }

        @Override
        public void onSendAcknowledgement(Producer producer, Message message, MessageId id, Throwable failure) {
            receipts.incrementAndGet();
        }
    }

    /** Counts acknowledgements. */
    private static final class Counting implements ConsumerInterceptor<String> {
        final AtomicInteger acknowledged = new AtomicInteger();

        @Override
        public void close() {}

        @Override
        public Message<String> beforeConsume(Consumer<String> consumer, Message<String> message) {
            return message;
        }

        @Override
        public void onAcknowledge(Consumer<String> consumer, MessageId id, Throwable failure) {
            acknowledged.incrementAndGet();
        }

        @Override
        public void onAcknowledgeCumulative(Consumer<String> consumer, MessageId id, Throwable failure) {}

        @Override
        public void onNegativeAcksSend(Consumer<String> consumer, Set<MessageId> ids) {}

        @Override
        public void onAckTimeoutSend(Consumer<String> consumer, Set<MessageId> ids) {}
    }

    static void interceptors(Trial t) throws Exception {
        var marking = new Marking();
        var counting = new Counting();
        var consumer = t.subscribe("s", SubscriptionType.Shared, builder -> builder.intercept(counting));
        send(t.producer(builder -> builder.intercept(marking)), "a");
        var message = receive(consumer);
        equal("yes", message.getProperty("marked"));
        consumer.acknowledge(message);
        until("both calls", () -> marking.receipts.get() == 1 && counting.acknowledged.get() == 1);
    }

    static void batching(Trial t) throws Exception {
        var consumers = List.of(
                t.subscribe("s", SubscriptionType.Key_Shared), t.subscribe("s", SubscriptionType.Key_Shared));
        var producer = t.producer(builder -> builder.enableBatching(true)
                .batcherBuilder(BatcherBuilder.KEY_BASED)
                .batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS));
        for (int n = 0; n < 60; n++) {
            producer.newMessage().key("key-" + n % 6).value(String.valueOf(n)).sendAsync();
        }
        producer.flush();
        var owners = new HashMap<String, Integer>();
        int count = 0;
        for (int round = 0; count < 60; round++) {
            check(round < 400, "all messages", count);
            int number = round % 2;
            var message = consumers.get(number).receive(100, TimeUnit.MILLISECONDS);
            if (message != null) {
                Integer owner = owners.put(message.getKey(), number);
                check(owner == null || owner == number, "one consumer for a key", message.getKey());
                consumers.get(number).acknowledge(message);
                count++;
            }
        }
    }

    static void delayed(Trial t) throws Exception {
        var consumer = t.subscribe("s", SubscriptionType.Shared);
        var producer = t.producer();
        long began = System.nanoTime();
        producer.newMessage().value("later").deliverAfter(700, TimeUnit.MILLISECONDS).send();
        send(producer, "now");
        equal(List.of("now", "later"), take(consumer, 2));
        check(System.nanoTime() - began >= 650_000_000L, "the delay", System.nanoTime() - began);
    }

    private Sending() {}
}
