package anabranch;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;

/**
 * Tries the usual features of the classic client: a case per line of standard input, as JSON. The answer is a line
 * with the error of the case, or a line with a request, such as to restart the broker.
 */
public final class Features {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final BufferedReader LINES = new BufferedReader(new InputStreamReader(System.in));

    /** What a case does; it throws when something is not as it must be. */
    interface Feature {
        void run(Trial trial) throws Exception;
    }

    private static final Map<String, Feature> FEATURES = new HashMap<>();

    static {
        FEATURES.put("types", Reading::types);
        FEATURES.put("failover", Reading::failover);
        FEATURES.put("readers", Reading::readers);
        FEATURES.put("seek", Reading::seek);
        FEATURES.put("table view", Reading::tableView);
        FEATURES.put("pattern", Reading::pattern);
        FEATURES.put("chunking", Sending::chunking);
        FEATURES.put("encryption", Sending::encryption);
        FEATURES.put("schemas", Sending::schemas);
        FEATURES.put("dead letter", Sending::deadLetter);
        FEATURES.put("retry", Sending::retry);
        FEATURES.put("interceptors", Sending::interceptors);
        FEATURES.put("batching", Sending::batching);
        FEATURES.put("delayed", Sending::delayed);
        FEATURES.put("partitions", Administering::partitions);
        FEATURES.put("http", Administering::overHttp);
        FEATURES.put("admin", Administering::administer);
        FEATURES.put("live", Administering::live);
        FEATURES.put("restart", Meeting::restart);
        FEATURES.put("workers", Meeting::workers);
        FEATURES.put("exchange", Meeting::exchange);
        FEATURES.put("transactions", Meeting::transactions);
    }

    public static void main(String[] args) throws Exception {
        for (String line = LINES.readLine(); line != null; line = LINES.readLine()) {
            JsonNode one = JSON.readTree(line);
            String error = "";
            try (var trial = new Trial(one)) {
                FEATURES.get(one.get("case").asText()).run(trial);
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
}
