package anabranch;

import static anabranch.Trial.check;
import static anabranch.Trial.equal;
import static anabranch.Trial.send;
import static anabranch.Trial.take;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicDomain;
import org.apache.pulsar.common.policies.data.TenantInfo;

/** Cases with the admin client, and with HTTP lookups. */
final class Administering {
    private static PulsarAdmin admin(Trial t) throws Exception {
        return PulsarAdmin.builder().serviceHttpUrl(t.http).build();
    }

    static void partitions(Trial t) throws Exception {
        try (var admin = admin(t)) {
            admin.topics().createPartitionedTopic(t.topic, 3);
            equal(3, t.client.getPartitionsForTopic(t.topic).get().size());
            var consumer = t.subscribe("s", SubscriptionType.Shared);
            var producer = t.producer();
            for (int n = 0; n < 30; n++) {
                send(producer, String.valueOf(n));
            }
            equal(30, take(consumer, 30).size());
            admin.topics().updatePartitionedTopic(t.topic, 5);
            equal(5, admin.topics().getPartitionedTopicMetadata(t.topic).partitions);
        }
    }

    static void overHttp(Trial t) throws Exception {
        try (var client = Trial.connect(t.http);
                var consumer = client.newConsumer(Schema.STRING).topic(t.topic).subscriptionName("s").subscribe();
                var producer = client.newProducer(Schema.STRING).topic(t.topic).create()) {
            producer.send("a");
            equal(List.of("a"), take(consumer, 1));
        }
    }

    /** A call that must fail, because the thing exists already. */
    private interface Repeated {
        void call() throws PulsarAdminException;
    }

    private static void conflicts(Repeated repeated) throws Exception {
        try {
            repeated.call();
            throw new AssertionError("no conflict");
        } catch (PulsarAdminException.ConflictException expected) {
            equal(409, expected.getStatusCode());
        }
    }

    static void administer(Trial t) throws Exception {
        try (var admin = admin(t)) {
            String tenant = t.topic.substring(t.topic.lastIndexOf('/') + 1);
            var info = TenantInfo.builder().allowedClusters(Set.of("standalone")).build();
            admin.tenants().createTenant(tenant, info);
            conflicts(() -> admin.tenants().createTenant(tenant, info));
            String namespace = tenant + "/n";
            admin.namespaces().createNamespace(namespace);
            conflicts(() -> admin.namespaces().createNamespace(namespace));
            String plain = "persistent://" + namespace + "/plain";
            admin.topics().createNonPartitionedTopic(plain);
            conflicts(() -> admin.topics().createNonPartitionedTopic(plain));
            String parts = "persistent://" + namespace + "/parts";
            admin.topics().createPartitionedTopic(parts, 2, Map.of("colour", "red"));
            conflicts(() -> admin.topics().createPartitionedTopic(parts, 2));
            for (String topic : List.of(plain, parts)) {
                admin.topics().createSubscription(topic, "s", MessageId.earliest);
                conflicts(() -> admin.topics().createSubscription(topic, "s", MessageId.latest));
            }
            equal(List.of("s"), admin.topics().getSubscriptions(plain));
            equal(0L, admin.topics().getStats(plain).getMsgInCounter());
            sizes(t, admin, plain);
            check(admin.brokers().getInternalConfigurationData().getMetadataStoreUrl() != null, "there is a store");
            admin.topics().deletePartitionedTopic(parts, true);
            admin.topics().delete(plain, true);
            check(admin.topics().getList(namespace, TopicDomain.persistent).isEmpty(), "no topics are left");
        }
    }

    /** The bytes behind each of two messages, and all bytes of the topic. */
    private static void sizes(Trial t, PulsarAdmin admin, String topic) throws Exception {
        try (var producer = t.client.newProducer(Schema.STRING).topic(topic).create()) {
            MessageId first = producer.send("a");
            MessageId last = producer.send("b");
            long whole = admin.topics().getInternalStats(topic).totalSize;
            long behind = admin.topics().getBacklogSizeByMessageId(topic, first);
            equal(whole, admin.topics().getBacklogSizeByMessageId(topic, MessageId.earliest));
            check(0 < behind && behind < whole, "one of two entries is behind the first: " + behind);
            equal(0L, admin.topics().getBacklogSizeByMessageId(topic, last));
        }
    }

    /** A topic that stores nothing: consumers of each type get what they are there for. */
    static void live(Trial t) throws Exception {
        try (var admin = admin(t)) {
            var consumers = new ArrayList<Consumer<String>>();
            for (SubscriptionType type : SubscriptionType.values()) {
                consumers.add(t.subscribe("s" + type, type));
            }
            var producer = t.producer();
            send(producer, "a", "b", "c");
            for (Consumer<String> consumer : consumers) {
                equal(List.of("a", "b", "c"), take(consumer, 3));
            }
            var late = t.subscribe("late", SubscriptionType.Exclusive);
            send(producer, "after");
            equal(List.of("after"), take(late, 1));
            var reader = t.client.newReader(Schema.STRING).topic(t.topic).startMessageId(MessageId.latest).create();
            check(!reader.hasMessageAvailable(), "nothing is stored");
            send(producer, "read");
            equal("read", reader.readNext(Trial.PATIENCE_S, TimeUnit.SECONDS).getValue());
            check(admin.topics().getList("public/default").contains(t.topic), "the topic is listed");
            equal(5L, admin.topics().getStats(t.topic).getMsgInCounter());
            admin.topics().unload(t.topic);
            admin.topics().getInternalStats(t.topic);
            admin.topics().delete(t.topic, true);
        }
    }

    private Administering() {}
}
