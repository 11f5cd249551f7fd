import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Takes and releases Redisson's locks for bench/redisson.py.
 *
 * <p>Argument: the URL of the server. Each line of stdin is one command, answered by one line of stdout:
 * {@code pairs KIND NAME COUNT} gives the nanoseconds of each pair, {@code contend KIND NAME THREADS UNTIL HOLD} gives
 * for each thread the instants of its holds, {@code granted released}, comma separated. Instants are nanoseconds of the
 * machine's monotonic clock; HOLD is in microseconds. KIND is {@code lock} or {@code fair}.
 */
public final class RedissonPeer {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]);
        RedissonClient client = Redisson.create(config);
        try (BufferedReader input = new BufferedReader(new InputStreamReader(System.in))) {
            System.out.println("ready");
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                Function<String, RLock> kind = words[1].equals("fair") ? client::getFairLock : client::getLock;
                System.out.println(words[0].equals("pairs")
                        ? pairs(kind.apply(words[2]), Integer.parseInt(words[3]))
                        : contend(kind.apply(words[2]), Integer.parseInt(words[3]), Long.parseLong(words[4]),
                                Long.parseLong(words[5])));
            }
        }
        client.shutdown();
    }

    private static String pairs(RLock lock, int count) {
        StringBuilder times = new StringBuilder();
        for (int turn = 0; turn < count; turn++) {
            long start = System.nanoTime();
            lock.lock();
            lock.unlock();
            times.append(System.nanoTime() - start).append(' ');
        }
        return times.toString();
    }

    private static String contend(RLock lock, int threads, long until, long hold) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<String>> turns = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            turns.add(pool.submit(() -> turn(lock, until, hold)));
        }
        StringBuilder all = new StringBuilder();
        for (Future<String> turn : turns) {
            all.append(turn.get()).append('\t');
        }
        pool.shutdown();
        return all.toString();
    }

    private static String turn(RLock lock, long until, long hold) {
        StringBuilder holds = new StringBuilder();
        while (System.nanoTime() < until) {
            lock.lock();
            long granted = System.nanoTime();
            long end = granted + hold * 1000;
            for (long left = end - System.nanoTime(); left > 0; left = end - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            long released = System.nanoTime();
            lock.unlock();
            holds.append(granted).append(' ').append(released).append(',');
        }
        return holds.toString();
    }
}
