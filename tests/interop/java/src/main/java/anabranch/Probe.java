package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.v5.config.TlsPolicy;

/**
 * Uses the official client with credentials: one case per line of standard input, as JSON, and one outcome per line
 * of standard output. Topics of the scheme {@code topic} are used through the V5 API, others through the classic one.
 */
public final class Probe {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** The plugin that a case names, and its parameters in Pulsar's form. */
    private record Credentials(String plugin, String params) {}

    /** Sends one message and receives it. */
    private interface Exchange {
        void once() throws Exception;
    }

    private int received;

    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var probe = new Probe();
            String error = "";
            try {
                probe.run(JSON.readTree(line));
            } catch (Exception | LinkageError failure) {
                error = failure.toString();
            }
            System.out.println(JSON.writeValueAsString(Map.of("received", probe.received, "error", error)));
        }
    }

    private void run(JsonNode one) throws Exception {
        if (one.get("topic").asText().startsWith("topic://")) {
            useScalable(one);
        } else {
            useClassic(one);
        }
    }

    private static Credentials credentials(JsonNode one) throws Exception {
        String impl = "org.apache.pulsar.client.impl.auth.";
        JsonNode given = one.get("params");
        return switch (one.get("method").asText()) {
            case "none" -> null;
            case "token" -> new Credentials(impl + "AuthenticationToken", "file://" + given.get("file").asText());
            case "tls" -> new Credentials(
                    impl + "AuthenticationTls",
                    "tlsCertFile:" + given.get("certificate").asText() + ",tlsKeyFile:" + given.get("key").asText());
            case "basic" -> new Credentials(
                    impl + "AuthenticationBasic",
                    JSON.writeValueAsString(
                            Map.of("userId", given.get("user").asText(), "password", given.get("password").asText())));
            case "oauth2" -> new Credentials(
                    impl + "oauth2.AuthenticationOAuth2",
                    JSON.writeValueAsString(Map.of(
                            "type", "client_credentials",
                            "issuerUrl", given.get("issuer").asText(),
                            "audience", given.get("audience").asText(),
                            "privateKey", given.get("key_file").asText())));
            default -> throw new IllegalArgumentException("no such method: " + one.get("method"));
        };
    }

    private void useClassic(JsonNode one) throws Exception {
        int timeoutS = one.get("timeout_s").asInt();
        var builder = org.apache.pulsar.client.api.PulsarClient.builder()
                .serviceUrl(one.get("url").asText())
                .operationTimeout(timeoutS, TimeUnit.SECONDS)
                .lookupTimeout(timeoutS, TimeUnit.SECONDS);
        if (!one.get("trust").asText().isEmpty()) {
            builder.tlsTrustCertsFilePath(one.get("trust").asText()).enableTlsHostnameVerification(true);
        }
        Credentials shown = credentials(one);
        if (shown != null) {
            builder.authentication(shown.plugin(), shown.params());
        }
        String topic = one.get("topic").asText();
        try (var client = builder.build();
                var consumer = client.newConsumer()
                        .topic(topic)
                        .subscriptionName(one.get("subscription").asText())
                        .subscriptionType(org.apache.pulsar.client.api.SubscriptionType.Shared)
                        .subscribe();
                var producer = client.newProducer()
                        .topic(topic)
                        .sendTimeout(timeoutS, TimeUnit.SECONDS)
                        .create()) {
            repeat(one, () -> {
                producer.newMessage().key("key").value("value".getBytes()).send();
                var message = consumer.receive(timeoutS, TimeUnit.SECONDS);
                consumer.acknowledge(message);
            });
        }
    }

    private void useScalable(JsonNode one) throws Exception {
        int timeoutS = one.get("timeout_s").asInt();
        var builder = org.apache.pulsar.client.api.v5.PulsarClient.builder()
                .serviceUrl(one.get("url").asText())
                .operationTimeout(Duration.ofSeconds(timeoutS));
        if (!one.get("trust").asText().isEmpty()) {
            builder.tlsPolicy(TlsPolicy.builder()
                    .trustCertsFilePath(one.get("trust").asText())
                    .enableHostnameVerification(true)
                    .build());
        }
        Credentials shown = credentials(one);
        if (shown != null) {
            builder.authentication(shown.plugin(), shown.params());
        }
        String topic = one.get("topic").asText();
        var schema = org.apache.pulsar.client.api.v5.schema.Schema.string();
        try (var client = builder.build();
                var consumer = client.newStreamConsumer(schema)
                        .topic(topic)
                        .subscriptionName(one.get("subscription").asText())
                        .subscribe();
                var producer = client.newProducer(schema)
                        .topic(topic)
                        .sendTimeout(Duration.ofSeconds(timeoutS))
                        .create()) {
            repeat(one, () -> {
                producer.newMessage().key("key").value("value").send();
                var message = consumer.receive(Duration.ofSeconds(timeoutS));
                consumer.acknowledgeCumulative(message.id());
            });
        }
    }

    /** Exchanges messages until the seconds of the case are over, at least ten. */
    private void repeat(JsonNode one, Exchange exchange) throws Exception {
        double seconds = one.get("seconds").asDouble();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (received < 10 || System.nanoTime() < end) {
            exchange.once();
            received++;
            if (seconds > 0) {
                Thread.sleep(100);
            }
        }
    }
}
