package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.pulsar.client.api.v5.PulsarClient;

/**
 * Tries the usual features of the V5 client: a case per line of standard input, as JSON. The answer is a line with the
 * error of the case, or a line with a request, such as to restart the broker.
 */
public final class ScalableFeatures {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader LINES = new BufferedReader(new InputStreamReader(System.in));

    /** What a case does; it throws when something is not as it must be. */
    private interface Feature {
        void run(ScalableTrial trial) throws Exception;
    }

    private static final Map<String, Feature> FEATURES = new HashMap<>();

    static {
        FEATURES.put("consumers", ScalableMeeting::consumers);
        FEATURES.put("namespaces", ScalableMeeting::namespaces);
        FEATURES.put("batching", ScalableMeeting::batching);
        FEATURES.put("chunking", ScalableSending::chunking);
        FEATURES.put("encryption", ScalableSending::encryption);
        FEATURES.put("schemas", ScalableSending::schemas);
        FEATURES.put("dead letter", ScalableSending::deadLetter);
        FEATURES.put("delayed", ScalableSending::delayed);
        FEATURES.put("restart", ScalableMeeting::restart);
        FEATURES.put("exchange", ScalableMeeting::exchange);
        FEATURES.put("transactions", ScalableMeeting::transactions);
        FEATURES.put("http", ScalableMeeting::http);
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
                FEATURES.get(one.get("case").asText()).run(new ScalableTrial(one, client));
            } catch (Throwable failure) {
                failure.printStackTrace();
                error = failure.toString();
            }
            say(Map.of("error", error));
        }
    }

    /** Waits until the other side has done something. */
    static void ask(String what) throws Exception {
        say(Map.of("ask", what));
        LINES.readLine();
    }

    private static void say(Map<String, String> what) throws Exception {
        System.out.println(JSON.writeValueAsString(what));
    }

    private ScalableFeatures() {}
}
