package anabranch;

import static anabranch.Trial.check;
import static anabranch.Trial.equal;
import static anabranch.Trial.send;
import static anabranch.Trial.sorted;
import static anabranch.Trial.take;
import static anabranch.Trial.until;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** Cases about subscriptions, readers and views. */
final class Reading {
    static void types(Trial t) throws Exception {
        var exclusive = t.subscribe("exclusive", SubscriptionType.Exclusive);
        try {
            t.subscribe("exclusive", SubscriptionType.Exclusive);
            throw new AssertionError("a second exclusive consumer is not refused");
        } catch (PulsarClientException.ConsumerBusyException expected) {
            check(expected.getMessage() != null, "a reason");
        }
        var groups = List.of(
                List.of(t.subscribe("shared", SubscriptionType.Shared), t.subscribe("shared", SubscriptionType.Shared)),
                List.of(
                        t.subscribe("keyed", SubscriptionType.Key_Shared),
                        t.subscribe("keyed", SubscriptionType.Key_Shared)),
                List.of(sticky(t, 0, 32767), sticky(t, 32768, 65535)));
        String[] values = IntStream.range(10, 50).mapToObj(String::valueOf).toArray(String[]::new);
        send(t.producer(), values);
        equal(List.of(values), take(exclusive, values.length));
        for (var group : groups) {
            var got = new ArrayList<String>();
            for (int round = 0; got.size() < values.length; round++) {
                check(round < 400, "all messages", got.size());
                var message = group.get(round % 2).receive(100, TimeUnit.MILLISECONDS);
                if (message != null) {
                    got.add(message.getValue());
                    group.get(round % 2).acknowledge(message);
                }
            }
            equal(List.of(values), sorted(got));
        }
    }

    private static Consumer<String> sticky(Trial t, int start, int end) throws Exception {
        var policy = KeySharedPolicy.stickyHashRange().ranges(Range.of(start, end));
        return t.subscribe("sticky", SubscriptionType.Key_Shared, builder -> builder.keySharedPolicy(policy));
    }

    /** Counts the news of a failover consumer. */
    private static final class News implements ConsumerEventListener {
        final AtomicInteger active = new AtomicInteger();
        final AtomicInteger inactive = new AtomicInteger();

        @Override
        public void becameActive(Consumer<?> consumer, int partition) {
            active.incrementAndGet();
        }

        @Override
        public void becameInactive(Consumer<?> consumer, int partition) {
            inactive.incrementAndGet();
        }
    }

    static void failover(Trial t) throws Exception {
        var first = new News();
        var second = new News();
        var active = t.subscribe(
                "s", SubscriptionType.Failover, builder -> builder.consumerName("a").consumerEventListener(first));
        until("the first is active", () -> first.active.get() == 1);
        var standby = t.subscribe(
                "s", SubscriptionType.Failover, builder -> builder.consumerName("b").consumerEventListener(second));
        until("the second is not", () -> second.inactive.get() == 1);
        var producer = t.producer();
        send(producer, "1");
        take(active, 1);
        active.close();
        until("the second takes over", () -> second.active.get() == 1);
        send(producer, "2");
        equal(List.of("2"), take(standby, 1));
    }

    private static Reader<String> reader(Trial t, MessageId start, boolean inclusive) throws Exception {
        var builder = t.client.newReader(Schema.STRING).topic(t.topic).startMessageId(start);
        return (inclusive ? builder.startMessageIdInclusive() : builder).create();
    }

    /** Reads as long as the reader says that there is more. */
    private static List<String> rest(Reader<String> reader) throws Exception {
        var values = new ArrayList<String>();
        while (reader.hasMessageAvailable()) {
            values.add(reader.readNext(Trial.PATIENCE_S, TimeUnit.SECONDS).getValue());
        }
        return values;
    }

    static void readers(Trial t) throws Exception {
        var first = reader(t, MessageId.earliest, false);
        var late = reader(t, MessageId.latest, false);
        check(!first.hasMessageAvailable() && !late.hasMessageAvailable(), "nothing is there");
        var ids = send(t.producer(), "a", "b", "c");
        equal(List.of("a", "b", "c"), rest(first));
        equal(List.of("a", "b", "c"), rest(late));
        equal(List.of("b", "c"), rest(reader(t, ids.get(0), false)));
        equal(List.of("b", "c"), rest(reader(t, ids.get(1), true)));
        equal(List.of(), rest(reader(t, MessageId.latest, false)));
        equal(List.of("c"), rest(reader(t, MessageId.latest, true)));
    }

    static void seek(Trial t) throws Exception {
        var producer = t.producer();
        var ids = send(producer, "a", "b");
        Thread.sleep(100);
        long middle = System.currentTimeMillis();
        Thread.sleep(100);
        send(producer, "c", "d");
        var reader = reader(t, MessageId.earliest, false);
        var consumer = t.subscribe("s", SubscriptionType.Exclusive, builder -> builder.startMessageIdInclusive());
        equal(List.of("a", "b", "c", "d"), rest(reader));
        equal(List.of("a", "b", "c", "d"), take(consumer, 4));
        reader.seek(middle);
        consumer.seek(middle);
        equal(List.of("c", "d"), rest(reader));
        equal(List.of("c", "d"), take(consumer, 2));
        reader.seek(ids.get(1));
        consumer.seek(ids.get(1));
        equal(List.of("c", "d"), rest(reader));
        equal(List.of("b", "c", "d"), take(consumer, 3));
        reader.seek(MessageId.latest);
        check(!reader.hasMessageAvailable(), "the end");
    }

    static void tableView(Trial t) throws Exception {
        var producer = t.producer();
        producer.newMessage().key("a").value("1").send();
        producer.newMessage().key("a").value("2").send();
        var view = t.client.newTableView(Schema.STRING).topic(t.topic).create();
        equal("2", view.get("a"));
        producer.newMessage().key("b").value("3").send();
        until("a new key", () -> "3".equals(view.get("b")));
        view.close();
    }

    static void pattern(Trial t) throws Exception {
        var consumer = t.client
                .newConsumer(Schema.STRING)
                .topicsPattern(Pattern.compile(t.topic + "-.*"))
                .patternAutoDiscoveryPeriod(1, TimeUnit.SECONDS)
                .subscriptionName("s")
                .subscribe();
        for (String part : List.of("-one", "-two")) {
            var producer = t.producer(builder -> builder.topic(t.topic + part));
            until("the consumer finds the topic", () -> {
                send(producer, part);
                var message = consumer.receive(200, TimeUnit.MILLISECONDS);
                return message != null && message.getValue().equals(part);
            });
        }
    }

    private Reading() {}
}
