package anabranch;

import static anabranch.Trial.check;
import static anabranch.Trial.equal;
import static anabranch.Trial.receive;
import static anabranch.Trial.send;
import static anabranch.Trial.take;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Locale;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/** Cases in which the other side has a part: it kills processes, or sends and reads with another client. */
final class Meeting {
    static void restart(Trial t) throws Exception {
        var consumer = t.subscribe("s", SubscriptionType.Shared);
        var producer = t.producer();
        send(producer, "a");
        Features.ask("restart");
        send(producer, "b");
        takeAll(consumer, "a", "b");
    }

    /** Loses each of two workers once, while the other serves. */
    static void workers(Trial t) throws Exception {
        var consumer = t.subscribe("s", SubscriptionType.Shared);
        var producer = t.producer();
        send(producer, "a");
        Features.ask("lose worker 0");
        send(producer, "b");
        Features.ask("lose worker 1");
        send(producer, "c");
        takeAll(consumer, "a", "b", "c");
    }

    /** Receives until each value came; after the loss of a connection some may come twice. */
    private static void takeAll(Consumer<String> consumer, String... values) throws Exception {
        var missing = new HashSet<>(List.of(values));
        while (!missing.isEmpty()) {
            missing.removeAll(take(consumer, 1));
        }
    }

    private static ProducerBuilder<byte[]> secret(Trial t) {
        return t.client
                .newProducer(Schema.BYTES)
                .topic(t.topic + "-theirs")
                .compressionType(CompressionType.LZ4)
                .addEncryptionKey("app")
                .defaultCryptoKeyReader("file://" + t.publicKey);
    }

    /** Sends encrypted messages to another client, and reads those that it encrypts. */
    static void exchange(Trial t) throws Exception {
        byte[] large = "0123456789abcdef".repeat(6 << 16).getBytes();
        var batched = secret(t).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create();
        for (int n = 0; n < 30; n++) {
            batched.newMessage().key("k").value(("value-" + n).getBytes()).sendAsync();
        }
        batched.flush();
        var chunked = secret(t).enableBatching(false).enableChunking(true).create();
        chunked.newMessage().key("k").value(large).send();
        Features.ask("exchange");
        var consumer = t.client
                .newConsumer(Schema.BYTES)
                .topic(t.topic + "-ours")
                .subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .defaultCryptoKeyReader("file://" + t.privateKey)
                .subscribe();
        for (int n = 0; n < 30; n++) {
            var message = receive(consumer);
            equal("kvalue-" + n, message.getKey() + new String(message.getValue()));
        }
        check(Arrays.equals(large, receive(consumer).getValue()), "our chunks");
    }

    /** Transactions are refused at once, with a reason. */
    static void transactions(Trial t) throws Exception {
        long began = System.nanoTime();
        try (var client = PulsarClient.builder()
                .serviceUrl(t.url)
                .operationTimeout(Trial.PATIENCE_S, TimeUnit.SECONDS)
                .enableTransaction(true)
                .build()) {
            client.newTransaction().build().get(Trial.PATIENCE_S, TimeUnit.SECONDS);
        } catch (Exception refused) {
            String reason = String.valueOf(refused.getMessage());
            check(reason.toLowerCase(Locale.ROOT).contains("transaction"), "a reason that names it", refused);
            long seconds = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - began);
            check(seconds < Trial.PATIENCE_S / 2, "an answer at once", seconds);
            return;
        }
        throw new AssertionError("a transaction is not refused");
    }

    private Meeting() {}
}
