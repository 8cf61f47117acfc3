package anabranch;

import static anabranch.ScalableTrial.check;
import static anabranch.ScalableTrial.equal;
import static anabranch.ScalableTrial.receive;
import static anabranch.ScalableTrial.send;
import static anabranch.ScalableTrial.take;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.apache.pulsar.client.api.v5.PulsarClientException;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.ConsumerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.DeadLetterPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Cases about messages of the V5 client: how they are sent, and what becomes of them. */
final class ScalableSending {
    static void chunking(ScalableTrial t) throws Exception {
        var producer = t.client.newProducer(Schema.bytes())
                .topic(t.topic)
                .batchingPolicy(BatchingPolicy.ofDisabled())
                .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(1 << 20).build())
                .create();
        byte[] value = new byte[12 << 20];
        Arrays.fill(value, (byte) 7);
        producer.newMessage().value(value).send();
        var consumer = t.queue(Schema.bytes(), "s").subscribe();
        check(Arrays.equals(value, receive(consumer).value()), "the large message", "another one");
    }

    static void encryption(ScalableTrial t) throws Exception {
        var keys = t.keys();
        var consumer = t.queue(Schema.string(), "s")
                .encryptionPolicy(ConsumerEncryptionPolicy.builder().privateKeyProvider(keys).build())
                .subscribe();
        var producer = t.client.newProducer(Schema.string())
                .topic(t.topic)
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

    static void schemas(ScalableTrial t) throws Exception {
        evolve(t, t.topic + "-avro", Schema.avro(Before.Thing.class), Schema.avro(After.Thing.class));
        evolve(t, t.topic + "-json", Schema.json(Before.Thing.class), Schema.json(After.Thing.class));
    }

    private static void evolve(ScalableTrial t, String topic, Schema<Before.Thing> before, Schema<After.Thing> after)
            throws Exception {
        var old = new Before.Thing();
        old.name = "a";
        t.client.newProducer(before).topic(topic).create().newMessage().value(old).send();
        var next = new After.Thing();
        next.name = "b";
        next.colour = "blue";
        t.client.newProducer(after).topic(topic).create().newMessage().value(next).send();
        var consumer = t.queueOf(after, "s").topic(topic).subscribe();
        var first = receive(consumer).value();
        equal("a", first.name);
        check(first.colour == null, "no colour", first.colour);
        equal("blue", receive(consumer).value().colour);
        var earlier = t.queueOf(before, "old").topic(topic).subscribe();
        equal("a", receive(earlier).value().name);
        equal("b", receive(earlier).value().name);
        var any = t.queueOf(Schema.autoConsume(), "any").topic(topic).subscribe();
        equal("a", receive(any).value().field("name").toString());
        equal("blue", receive(any).value().field("colour").toString());
        try {
            send(t.producer(topic), "text");
            throw new AssertionError("another type is not refused");
        } catch (PulsarClientException expected) {
            check(expected.getMessage() != null, "a reason", expected);
        }
    }

    static void deadLetter(ScalableTrial t) throws Exception {
        String letters = t.topic + "-dead";
        var policy = DeadLetterPolicy.builder()
                .maxRedeliverCount(2)
                .deadLetterTopic(letters)
                .initialSubscriptionName("look")
                .build();
        var consumer = t.queue(Schema.string(), "s").deadLetterPolicy(policy).subscribe();
        send(t.producer(), "bad");
        for (int n = 0; n < 3; n++) {
            consumer.negativeAcknowledge(receive(consumer).id());
        }
        // This client's dead letters have no schema.
        var dead = t.queueOf(Schema.bytes(), "look").topic(letters).subscribe();
        equal("bad", new String(receive(dead).value()));
    }

    static void delayed(ScalableTrial t) throws Exception {
        var consumer = t.queue(Schema.string(), "s").subscribe();
        var producer = t.producer();
        long began = System.nanoTime();
        producer.newMessage().value("later").deliverAfter(Duration.ofMillis(700)).send();
        producer.newMessage().value("now").send();
        equal(List.of("now", "later"), take(consumer, 2));
        check(System.nanoTime() - began >= 650_000_000L, "the delay", System.nanoTime() - began);
    }

    private ScalableSending() {}
}
