import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.data.Stat;

/**
 * Uses Curator's locks as it is told, for tests that share paths with Java.
 *
 * <p>Arguments: where to connect, the session's time-out and how long connecting may take, in milliseconds. A line of stdin is a handle, a verb and its
 * words, parted by tabs; each is answered by one line of stdout that begins with the handle. Every handle has a thread
 * of its own, because Curator binds a mutex to the thread that took it, and does what it is told in order; so one that
 * waits keeps no other from its work. Instants are nanoseconds of the machine's monotonic clock. At the end of stdin
 * the session is closed.
 */
public final class Curator {
    private static final long FOR_EVER = -1;

    /** One lock, or one side of it, as one thread uses it. */
    private interface Recipe {
        /** Null: not in that time. Else the node that holds, or nothing where Curator does not tell. */
        String take(long milliseconds, String word) throws Exception;

        void give(String word) throws Exception;

        /** Who takes part, in order: nodes, or what Curator shows instead. */
        Collection<String> list(String word) throws Exception;

        default InterProcessMutex mutex(String word) {
            throw new IllegalArgumentException("only a mutex can do this");
        }
    }

    private final CuratorFramework client;
    private final Map<String, Handle> handles = new HashMap<>();

    private Curator(CuratorFramework client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(arguments[0])
                .sessionTimeoutMs(Integer.parseInt(arguments[1]))
                .connectionTimeoutMs(15_000)
                .retryPolicy(new ExponentialBackoffRetry(100, 5))
                .build()) {
            client.start();
            if (client.blockUntilConnected(Integer.parseInt(arguments[2]), TimeUnit.MILLISECONDS)) {
                say("-", "ready");
                new Curator(client).obey();
            } else {
                say("-", "error", "nobody answers at " + arguments[0]);
            }
        }
        System.exit(0); // a thread that still waits for a lock does not keep us
    }

    private void obey() throws Exception {
        BufferedReader told = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = told.readLine(); line != null; line = told.readLine()) {
            String[] words = line.split("\t", -1);
            handles.computeIfAbsent(words[0], Handle::new).tell(words);
        }
    }

    private static synchronized void say(String handle, String... words) {
        System.out.println(handle + "\t" + String.join("\t", words));
        System.out.flush();
    }

    private static String now() {
        return Long.toString(System.nanoTime());
    }

    private final class Handle {
        private final String name;
        private final ExecutorService thread;
        private final Semaphore asked = new Semaphore(0);
        private CuratorFramework view = client;
        private Recipe recipe;

        Handle(String name) {
            this.name = name;
            this.thread = Executors.newSingleThreadExecutor(work -> {
                Thread made = new Thread(work, "handle " + name);
                made.setDaemon(true);
                return made;
            });
        }

        void tell(String[] words) {
            thread.execute(() -> {
                try {
                    say(name, answer(words));
                } catch (Exception error) {
                    say(name, "error", error.toString().replaceAll("\\s+", " "));
                }
            });
        }

        private String[] answer(String[] words) throws Exception {
            switch (words[1]) {
                case "make": // kind, path, namespace of the client, a number or an id
                    view = words[4].isEmpty() ? client : client.usingNamespace(words[4]);
                    recipe = make(view, words[2], words[3], words[5]);
                    return new String[] {"made"};
                case "take": // milliseconds, which side or how many
                    String node = recipe.take(Long.parseLong(words[2]), words[3]);
                    String instant = now();
                    if (node == null) {
                        return new String[] {"busy", instant};
                    }
                    return new String[] {"held", instant, node, node.isEmpty() ? "0" : created(node)};
                case "give":
                    String released = now();
                    recipe.give(words[2]);
                    return new String[] {"free", released};
                case "list":
                    return line("listed", recipe.list(words[2]));
                case "nodes": // path: all children with the transaction that created them
                    return line("nodes", withTransactions(words[2]));
                case "data":
                    return new String[] {"data", new String(view.getData().forPath(words[2]), StandardCharsets.UTF_8)};
                case "revocable": // before each take
                    asked.drainPermits();
                    recipe.mutex(words[2]).makeRevocable(lock -> asked.release());
                    return new String[] {"revocable"};
                case "asked": // milliseconds
                    return new String[] {asked.tryAcquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS) ? "yes" : "no"};
                case "revoke": // node
                    Revoker.attemptRevoke(view, words[2]);
                    return new String[] {"revoked"};
                case "pairs": // how many
                    return new String[] {"seconds", Double.toString(pairs(Integer.parseInt(words[2])))};
                case "contend": // until that instant, microseconds of each hold
                    return line("contended", contend(Long.parseLong(words[2]), Long.parseLong(words[3])));
                default:
                    throw new IllegalArgumentException("unknown verb " + words[1]);
            }
        }

        private String created(String node) throws Exception {
            Stat stat = view.checkExists().forPath(node);
            return Long.toString(stat == null ? 0 : stat.getCzxid());
        }

        private List<String> withTransactions(String path) throws Exception {
            List<String> seen = new ArrayList<>();
            for (String child : view.getChildren().forPath(path)) {
                seen.add(child + " " + created(path + "/" + child));
            }
            return seen;
        }

        /** Seconds that taking and giving back a free lock takes, as an average. */
        private double pairs(int count) throws Exception {
            InterProcessMutex lock = recipe.mutex("");
            long start = System.nanoTime();
            for (int pair = 0; pair < count; pair++) {
                lock.acquire();
                lock.release();
            }
            return (System.nanoTime() - start) / 1e9 / count;
        }

        /** For each hold the instant of its grant and the instant before its release. */
        private List<String> contend(long end, long microseconds) throws Exception {
            InterProcessMutex lock = recipe.mutex("");
            List<String> holds = new ArrayList<>();
            while (System.nanoTime() < end) {
                lock.acquire();
                long granted = System.nanoTime();
                for (long left = microseconds * 1_000; left > 0; left = granted + microseconds * 1_000 - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                long released = System.nanoTime();
                lock.release();
                holds.add(granted + " " + released);
            }
            return holds;
        }
    }

    private static String[] line(String first, Collection<String> rest) {
        List<String> words = new ArrayList<>(rest);
        words.add(0, first);
        return words.toArray(new String[0]);
    }

    private static Recipe make(CuratorFramework view, String kind, String path, String word) {
        switch (kind) {
            case "mutex":
                return new Mutex(view, path);
            case "rw":
                return new ReadWrite(view, path);
            case "semaphore":
                return new Permits(view, path, Integer.parseInt(word));
            case "semaphore-mutex":
                return new LoneLease(view, path);
            case "latch":
                return new Leadership(view, path, word);
            default:
                throw new IllegalArgumentException("unknown kind " + kind);
        }
    }

    private static boolean acquire(InterProcessLock lock, long milliseconds) throws Exception {
        if (milliseconds == FOR_EVER) {
            lock.acquire();
            return true;
        }
        return lock.acquire(milliseconds, TimeUnit.MILLISECONDS);
    }

    private static final class Mutex implements Recipe {
        /** Says where its node is. */
        private static final class Open extends InterProcessMutex {
            Open(CuratorFramework view, String path) {
                super(view, path);
            }

            String node() {
                return getLockPath();
            }
        }

        private final Open lock;

        Mutex(CuratorFramework view, String path) {
            lock = new Open(view, path);
        }

        @Override
        public String take(long milliseconds, String word) throws Exception {
            return acquire(lock, milliseconds) ? lock.node() : null;
        }

        @Override
        public void give(String word) throws Exception {
            lock.release();
        }

        @Override
        public Collection<String> list(String word) throws Exception {
            return lock.getParticipantNodes();
        }

        @Override
        public InterProcessMutex mutex(String word) {
            return lock;
        }
    }

    /** Words: read, write. */
    private static final class ReadWrite implements Recipe {
        private final InterProcessReadWriteLock lock;

        ReadWrite(CuratorFramework view, String path) {
            lock = new InterProcessReadWriteLock(view, path);
        }

        @Override
        public String take(long milliseconds, String word) throws Exception {
            return acquire(mutex(word), milliseconds) ? "" : null;
        }

        @Override
        public void give(String word) throws Exception {
            mutex(word).release();
        }

        @Override
        public Collection<String> list(String word) throws Exception {
            return mutex(word).getParticipantNodes();
        }

        @Override
        public InterProcessMutex mutex(String word) {
            return word.equals("read") ? lock.readLock() : lock.writeLock();
        }
    }

    /** The word of take is how many. Several takes may stand; give gives all back. */
    private static final class Permits implements Recipe {
        private final InterProcessSemaphoreV2 semaphore;
        private final List<Lease> leases = new ArrayList<>();
        private final String path;

        Permits(CuratorFramework view, String path, int permits) {
            semaphore = new InterProcessSemaphoreV2(view, path, permits);
            this.path = path;
        }

        @Override
        public String take(long milliseconds, String word) throws Exception {
            int count = Integer.parseInt(word);
            Collection<Lease> got = milliseconds == FOR_EVER
                    ? semaphore.acquire(count)
                    : semaphore.acquire(count, milliseconds, TimeUnit.MILLISECONDS);
            if (got == null) {
                return null;
            }
            leases.addAll(got);
            return path + "/leases/" + got.iterator().next().getNodeName();
        }

        @Override
        public void give(String word) {
            semaphore.returnAll(leases);
            leases.clear();
        }

        @Override
        public Collection<String> list(String word) throws Exception {
            return semaphore.getParticipantNodes();
        }
    }

    private static final class LoneLease implements Recipe {
        private final InterProcessSemaphoreMutex lock;

        LoneLease(CuratorFramework view, String path) {
            lock = new InterProcessSemaphoreMutex(view, path);
        }

        @Override
        public String take(long milliseconds, String word) throws Exception {
            return acquire(lock, milliseconds) ? "" : null;
        }

        @Override
        public void give(String word) throws Exception {
            lock.release();
        }

        @Override
        public Collection<String> list(String word) {
            throw new IllegalArgumentException("Curator lists no one for a semaphore mutex");
        }
    }

    /** Takes part from the first take until give; lists ids. */
    private static final class Leadership implements Recipe {
        private final CuratorFramework view;
        private final String path;
        private final String id;
        private LeaderLatch latch;

        Leadership(CuratorFramework view, String path, String id) {
            this.view = view;
            this.path = path;
            this.id = id;
        }

        @Override
        public String take(long milliseconds, String word) throws Exception {
            if (latch == null) {
                latch = new LeaderLatch(view, path, id);
                latch.start();
            }
            if (milliseconds == FOR_EVER) {
                latch.await();
                return "";
            }
            return latch.await(milliseconds, TimeUnit.MILLISECONDS) ? "" : null;
        }

        @Override
        public void give(String word) throws Exception {
            latch.close();
            latch = null;
        }

        /** All, or with the word leader only the leader. */
        @Override
        public Collection<String> list(String word) throws Exception {
            LeaderLatch asked = latch == null ? new LeaderLatch(view, path, id) : latch;
            if (word.equals("leader")) {
                return Collections.singletonList(asked.getLeader().getId());
            }
            List<String> ids = new ArrayList<>();
            for (Participant participant : asked.getParticipants()) {
                ids.add(participant.getId());
            }
            return ids;
        }
    }
}
