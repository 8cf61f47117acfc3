package anabranch;

import static anabranch.ScalableTrial.PATIENCE;
import static anabranch.ScalableTrial.START;
import static anabranch.ScalableTrial.check;
import static anabranch.ScalableTrial.equal;
import static anabranch.ScalableTrial.receive;
import static anabranch.ScalableTrial.send;
import static anabranch.ScalableTrial.take;
import static anabranch.ScalableTrial.takeAll;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.pulsar.client.api.v5.Checkpoint;
import org.apache.pulsar.client.api.v5.ProducerBuilder;
import org.apache.pulsar.client.api.v5.PulsarClient;
import org.apache.pulsar.client.api.v5.config.BatchingPolicy;
import org.apache.pulsar.client.api.v5.config.ChunkingPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionPolicy;
import org.apache.pulsar.client.api.v5.config.CompressionType;
import org.apache.pulsar.client.api.v5.config.ConsumerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.ProducerEncryptionPolicy;
import org.apache.pulsar.client.api.v5.config.TransactionPolicy;
import org.apache.pulsar.client.api.v5.schema.Schema;

/** Cases about consumers of the V5 client, and those in which the other side has a part. */
final class ScalableMeeting {
    static void consumers(ScalableTrial t) throws Exception {
        var stream = t.client.newStreamConsumer(Schema.string())
                .topic(t.topic)
                .subscriptionName("stream")
                .subscriptionInitialPosition(START)
                .subscribe();
        send(t.producer(), "a", "b");
        equal(List.of("a", "b"), take(t.queue(Schema.string(), "queue").subscribe(), 2));
        var all = stream.receive(PATIENCE);
        equal("a", all.value());
        stream.acknowledgeCumulative(all.id());
        equal("b", stream.receive(PATIENCE).value());
        var first = t.client.newCheckpointConsumer(Schema.string()).topic(t.topic).startPosition(Checkpoint.earliest());
        Checkpoint after;
        try (var reader = first.create()) {
            equal("a", reader.receive(PATIENCE).value());
            after = Checkpoint.fromByteArray(reader.checkpoint().toByteArray());
        }
        var second = t.client.newCheckpointConsumer(Schema.string()).topic(t.topic).startPosition(after);
        try (var reader = second.create()) {
            equal("b", reader.receive(PATIENCE).value());
        }
    }

    static void batching(ScalableTrial t) throws Exception {
        var policy = BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(50)).build();
        var producer = t.client.newProducer(Schema.string()).topic(t.topic).batchingPolicy(policy).create();
        var wanted = new HashMap<String, List<String>>();
        for (int n = 0; n < 60; n++) {
            String key = "key-" + n % 6;
            wanted.computeIfAbsent(key, k -> new ArrayList<>()).add(String.valueOf(n));
            producer.async().newMessage().key(key).value(String.valueOf(n)).send();
        }
        producer.async().flush().get();
        var stream = t.client.newStreamConsumer(Schema.string())
                .topic(t.topic)
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

    /** Consumers of a namespace read its topics, also new ones; a filter selects topics by their properties. */
    static void namespaces(ScalableTrial t) throws Exception {
        String namespace = "public/" + t.topic.substring(t.topic.lastIndexOf('/') + 1);
        ScalableFeatures.ask("make topics");
        var queue = t.queueOf(Schema.string(), "all").namespace(namespace).subscribe();
        var stream = t.client.newStreamConsumer(Schema.string())
                .namespace(namespace, Map.of("colour", "red"))
                .subscriptionName("red")
                .subscriptionInitialPosition(START)
                .subscribe();
        send(t.producer("topic://" + namespace + "/blue"), "1");
        send(t.producer("topic://" + namespace + "/red"), "2");
        equal(List.of("1", "2"), take(queue, 2).stream().sorted().toList());
        ScalableFeatures.ask("make one more");
        send(t.producer("topic://" + namespace + "/later"), "3");
        equal(List.of("3"), take(queue, 1));
        for (String value : List.of("2", "3")) {
            var message = stream.receive(PATIENCE);
            equal(value, message == null ? "none" : message.value());
            stream.acknowledgeCumulative(message.id());
        }
    }

    static void restart(ScalableTrial t) throws Exception {
        var consumer = t.queue(Schema.string(), "s").subscribe();
        var producer = t.producer();
        send(producer, "a");
        ScalableFeatures.ask("restart");
        send(producer, "b");
        takeAll(consumer, "a", "b");
    }

    private static ProducerBuilder<byte[]> secret(ScalableTrial t) throws Exception {
        return t.client.newProducer(Schema.bytes())
                .topic(t.topic + "-theirs")
                .compressionPolicy(CompressionPolicy.of(CompressionType.LZ4))
                .encryptionPolicy(ProducerEncryptionPolicy.builder()
                        .publicKeyProvider(t.keys())
                        .keyName("app")
                        .build());
    }

    /** Sends encrypted messages to another client, and reads those that it encrypts. */
    static void exchange(ScalableTrial t) throws Exception {
        byte[] large = "0123456789abcdef".repeat(6 << 16).getBytes();
        var batching = BatchingPolicy.builder().maxPublishDelay(Duration.ofMillis(50)).build();
        var batched = secret(t).batchingPolicy(batching).create();
        for (int n = 0; n < 30; n++) {
            batched.async().newMessage().key("k").value(("value-" + n).getBytes()).send();
        }
        batched.async().flush().get();
        var chunked = secret(t)
                .batchingPolicy(BatchingPolicy.ofDisabled())
                .chunkingPolicy(ChunkingPolicy.builder().enabled(true).chunkSize(1 << 20).build())
                .create();
        chunked.newMessage().key("k").value(large).send();
        ScalableFeatures.ask("exchange");
        var consumer = t.queueOf(Schema.bytes(), "s")
                .topic(t.topic + "-ours")
                .encryptionPolicy(ConsumerEncryptionPolicy.builder().privateKeyProvider(t.keys()).build())
                .subscribe();
        for (int n = 0; n < 30; n++) {
            var message = receive(consumer);
            equal("kvalue-" + n, message.key().orElse("") + new String(message.value()));
        }
        check(Arrays.equals(large, receive(consumer).value()), "our chunks", "others");
    }

    /** Transactions are refused with a reason; this client asks again until its timeout. */
    static void transactions(ScalableTrial t) throws Exception {
        long began = System.nanoTime();
        var policy = TransactionPolicy.builder().timeout(Duration.ofMinutes(1)).build();
        var soon = Duration.ofSeconds(1);
        var builder = PulsarClient.builder().serviceUrl(t.url).operationTimeout(soon).transactionPolicy(policy);
        try (var client = builder.build()) {
            client.newTransaction();
        } catch (Exception refused) {
            String reason = String.valueOf(refused.getMessage());
            check(reason.toLowerCase(Locale.ROOT).contains("transaction"), "a reason that names it", refused);
            long seconds = Duration.ofNanos(System.nanoTime() - began).toSeconds();
            check(seconds < PATIENCE.toSeconds() / 2, "an answer within its timeout", seconds);
            return;
        }
        throw new AssertionError("a transaction is not refused");
    }

    /** The client itself refuses an address of HTTP: scalable topics need the binary protocol. */
    static void http(ScalableTrial t) throws Exception {
        try (var client = PulsarClient.builder().serviceUrl(t.http).build()) {
            throw new AssertionError("an address of HTTP is not refused: " + client);
        } catch (IllegalArgumentException refused) {
            check(refused.getMessage().contains("binary protocol"), "a reason that names it", refused);
        }
    }

    private ScalableMeeting() {}
}
