import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;

/**
 * Uses Redisson's locks as lab/redisson.py tells it to, for tests in which Java and Python share names.
 *
 * <p>Arguments: topology, addresses parted by commas, the sentinels' service, watchdog timeout, fair wait, sharded mode,
 * prefix of all names, timeout of a command. All times are milliseconds. Each line of stdin is a handle, a verb and its
 * words, parted by tabs. Each gets one line of stdout that begins with the handle. Redisson binds a hold to a thread, so
 * each handle has a thread of its own, or shares the thread of the handle that it was made beside. Instants are
 * nanoseconds of the machine's monotonic clock. The client disconnects at the end of stdin.
 */
public final class RedissonProgram {
    private static final long NONE = -1;
    private static final TimeUnit MS = TimeUnit.MILLISECONDS;
    private static final int CONNECTIONS = 32;
    private static final int THREADS = 4;
    private static final int SCAN_MS = 1_000;
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final RedissonClient client;
    private final Map<String, Handle> handles = new HashMap<>();

    private RedissonProgram(RedissonClient client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        RedissonClient client;
        try {
            client = Redisson.create(config(arguments));
        } catch (Exception error) {
            say("-", "error", text(error));
            System.exit(1);
            return;
        }
        say("-", "ready", client.getId());
        try {
            new RedissonProgram(client).obey();
            client.shutdown();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0); // a thread that still waits for a lock must not keep the process alive
    }

    private static Config config(String[] arguments) throws ReflectiveOperationException {
        Config config = new Config();
        config.setThreads(THREADS).setNettyThreads(THREADS).setCodec(StringCodec.INSTANCE);
        config.setLockWatchdogTimeout(Long.parseLong(arguments[3]));
        if (!arguments[4].isEmpty()) {
            set(config, "setFairLockWaitTimeout", Long.valueOf(arguments[4]));
        }
        String[] addresses = arguments[1].split(",");
        BaseConfig<?> base;
        switch (arguments[0]) {
            case "single":
                base = config.useSingleServer().setAddress(addresses[0])
                        .setConnectionMinimumIdleSize(1).setConnectionPoolSize(CONNECTIONS)
                        .setSubscriptionConnectionMinimumIdleSize(1);
                break;
            case "sentinel":
                base = few(config.useSentinelServers().addSentinelAddress(addresses).setMasterName(arguments[2])
                        .setScanInterval(SCAN_MS).setCheckSentinelsList(false));
                break;
            case "cluster":
                base = few(config.useClusterServers().addNodeAddress(addresses).setScanInterval(SCAN_MS));
                if (!arguments[5].equals("AUTO")) {
                    set(base, "setShardedSubscriptionMode", arguments[5]);
                }
                break;
            default:
                throw new IllegalArgumentException("unknown topology " + arguments[0]);
        }
        base.setTimeout(Integer.parseInt(arguments[7]));
        if (!arguments[6].isEmpty()) {
            set(base, "setNameMapper", arguments[6]);
        }
        return config;
    }

    /** Reads go to the primary, because a test that asks for a lock's state must not see a replica's past. */
    private static BaseConfig<?> few(BaseMasterSlaveServersConfig<?> config) {
        return config.setReadMode(ReadMode.MASTER)
                .setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(CONNECTIONS)
                .setSlaveConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1);
    }

    /** Calls a setter that some versions lack, or whose parameter's type is elsewhere in some. */
    private static void set(Object config, String setter, Object value) throws ReflectiveOperationException {
        for (Method method : config.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                Class<?> type = method.getParameterTypes()[0];
                try {
                    method.invoke(config, setter.equals("setNameMapper") ? mapper(type, (String) value) : as(type, value));
                } catch (InvocationTargetException error) {
                    throw new IllegalArgumentException(error.getCause());
                }
                return;
            }
        }
        throw new IllegalArgumentException("this version of Redisson has no " + setter);
    }

    private static Object as(Class<?> type, Object value) {
        if (!type.isEnum()) {
            return value;
        }
        return Arrays.stream(type.getEnumConstants()).filter(one -> one.toString().equals(value)).findFirst().orElseThrow();
    }

    /** NameMapper is in another package since Redisson 4. */
    private static Object mapper(Class<?> type, String prefix) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, words) -> {
            switch (method.getName()) {
                case "map":
                    return prefix + words[0];
                case "unmap":
                    return ((String) words[0]).substring(prefix.length());
                case "hashCode":
                    return System.identityHashCode(proxy);
                case "equals":
                    return proxy == words[0];
                default:
                    return "prefix " + prefix;
            }
        });
    }

    private void obey() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split("\t", -1);
            if (words[1].equals("interrupt")) { // at once: the handle's own thread is busy
                handles.get(words[2]).worker.interrupt();
                say(words[0], "interrupted");
            } else if (words[1].equals("asleep")) {
                say(words[0], value(handles.get(words[2]).worker.isAsleep()));
            } else if (words[1].equals("make")) { // kind, name, the handle to be beside
                Worker worker = words[4].isEmpty() ? new Worker(words[0]) : handles.get(words[4]).worker;
                Handle handle = new Handle(words[0], worker);
                handles.put(words[0], handle);
                handle.make(words[2], words[3]);
            } else {
                handles.get(words[0]).tell(words);
            }
        }
    }

    private static synchronized void say(String handle, String... words) {
        OUT.println(handle + "\t" + String.join("\t", words));
        OUT.flush();
    }

    /** With its causes, because Redisson wraps what a listener of a reply threw. */
    private static String text(Throwable error) {
        StringBuilder all = new StringBuilder(error.toString());
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            all.append("; caused by ").append(cause);
        }
        return all.toString().replaceAll("\\s+", " ");
    }

    private static String now() {
        return Long.toString(System.nanoTime());
    }

    private interface Task {
        String[] run() throws Exception;
    }

    /** One thread. Redisson knows a holder by its thread. */
    private static final class Worker {
        private final ExecutorService executor;
        private final AtomicInteger unfinished = new AtomicInteger();
        private volatile Thread running;

        Worker(String name) {
            executor = Executors.newSingleThreadExecutor(work -> {
                Thread made = new Thread(work, "handle " + name);
                made.setDaemon(true);
                return made;
            });
        }

        void execute(String handle, Task task) {
            unfinished.incrementAndGet();
            executor.execute(() -> {
                running = Thread.currentThread();
                String[] answer;
                try {
                    answer = task.run();
                } catch (Throwable error) { // an Error without a reply would let Python wait for ever
                    answer = new String[] {"error", text(error)};
                }
                running = null;
                unfinished.decrementAndGet();
                Thread.interrupted(); // one that came too late must not disturb the reply
                say(handle, answer);
            });
        }

        /** Interrupts the verb that runs, or the one that is about to. Without any it does nothing. */
        void interrupt() {
            while (unfinished.get() > 0) {
                Thread thread = running;
                if (thread != null) {
                    thread.interrupt();
                    return;
                }
                LockSupport.parkNanos(100_000);
            }
        }

        /** Whether the verb that runs waits for a message of its lock: Redisson keeps a semaphore for that. */
        boolean isAsleep() {
            Thread thread = running;
            return thread != null
                    && Set.of(Thread.State.WAITING, Thread.State.TIMED_WAITING).contains(thread.getState())
                    && Arrays.stream(thread.getStackTrace())
                            .anyMatch(frame -> frame.getClassName().equals("java.util.concurrent.Semaphore"));
        }
    }

    private final class Handle {
        private final String id;
        private final Worker worker;
        private Kind kind;

        Handle(String id, Worker worker) {
            this.id = id;
            this.worker = worker;
        }

        @SuppressWarnings("deprecation") // getId: Redisson uses it, too
        void make(String sort, String name) {
            worker.execute(id, () -> {
                kind = kind(sort, name);
                return new String[] {"made", Long.toString(Thread.currentThread().getId())};
            });
        }

        void tell(String[] words) {
            worker.execute(id, () -> kind.answer(words));
        }
    }

    private Kind kind(String sort, String name) {
        switch (sort) {
            case "lock":
                return new Lock(client.getLock(name));
            case "fair":
                return new Lock(client.getFairLock(name));
            case "spin":
                return new Lock(client.getSpinLock(name));
            case "read":
                return new Lock(client.getReadWriteLock(name).readLock());
            case "write":
                return new Lock(client.getReadWriteLock(name).writeLock());
            case "multi": // names, parted by spaces
                return new Lock(client.getMultiLock(
                        Arrays.stream(name.split(" ")).map(client::getLock).toArray(RLock[]::new)));
            case "fenced":
                return new Fenced(client.getFencedLock(name));
            case "semaphore":
                return new Counting(client.getSemaphore(name));
            case "permits":
                return new Permits(client.getPermitExpirableSemaphore(name));
            case "latch":
                return new Latch(client.getCountDownLatch(name));
            default:
                throw new IllegalArgumentException("unknown kind " + sort);
        }
    }

    /** One object of Redisson. Words: the handle, the verb, and what the verb wants. */
    private interface Kind {
        String[] answer(String[] words) throws Exception;
    }

    private static String[] unknown(String[] words) {
        throw new IllegalArgumentException("this kind cannot " + words[1]);
    }

    private static String[] done() {
        return new String[] {"done"};
    }

    private static String[] value(Object value) {
        return new String[] {"value", String.valueOf(value)};
    }

    private static String[] held(Object token, List<String> ids) {
        List<String> words = new ArrayList<>(List.of("held", now(), String.valueOf(token)));
        words.addAll(ids);
        return words.toArray(new String[0]);
    }

    private static String[] busy() {
        return new String[] {"busy"};
    }

    private static class Lock implements Kind {
        private final RLock lock;

        Lock(RLock lock) {
            this.lock = lock;
        }

        @Override
        public String[] answer(String[] words) throws Exception {
            switch (words[1]) {
                case "take": // how long to wait, lease; -1: none
                    return take(Long.parseLong(words[2]), Long.parseLong(words[3]));
                case "give":
                    String released = now();
                    lock.unlock();
                    return new String[] {"free", released};
                case "force":
                    return value(lock.forceUnlock());
                case "state":
                    return new String[] {
                        "state", Boolean.toString(lock.isLocked()), Boolean.toString(lock.isHeldByCurrentThread()),
                        Integer.toString(lock.getHoldCount()), Long.toString(lock.remainTimeToLive())
                    };
                default:
                    return unknown(words);
            }
        }

        String[] take(long wait, long lease) throws Exception {
            return tryLock(wait, lease) ? held(0, List.of()) : busy();
        }

        boolean tryLock(long wait, long lease) throws InterruptedException {
            if (wait == NONE) {
                if (lease == NONE) {
                    lock.lockInterruptibly();
                } else {
                    lock.lockInterruptibly(lease, MS);
                }
                return true;
            }
            if (lease == NONE) { // without arguments it does not queue for a fair lock
                return wait == 0 ? lock.tryLock() : lock.tryLock(wait, MS);
            }
            return lock.tryLock(wait, lease, MS);
        }
    }

    private static final class Fenced extends Lock {
        private final RFencedLock lock;

        Fenced(RFencedLock lock) {
            super(lock);
            this.lock = lock;
        }

        @Override
        public String[] answer(String[] words) throws Exception {
            return words[1].equals("token") ? value(lock.getToken()) : super.answer(words);
        }

        /**
         * By the methods that take and tell the token in one step, where they do as they say. With a lease but no limit
         * that method ignores the lease, and with no wait it waits without limit. There the token is read after the
         * grant, while the lock is held.
         */
        @Override
        String[] take(long wait, long lease) throws Exception {
            if (wait == 0 || wait == NONE && lease != NONE) {
                return tryLock(wait, lease) ? held(lock.getToken(), List.of()) : busy();
            }
            Long token;
            if (wait == NONE) {
                token = lock.lockAndGetToken();
            } else {
                token = lease == NONE ? lock.tryLockAndGetToken(wait, MS) : lock.tryLockAndGetToken(wait, lease, MS);
            }
            return token == null ? busy() : held(token, List.of());
        }
    }

    private static final class Counting implements Kind {
        private final RSemaphore semaphore;

        Counting(RSemaphore semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public String[] answer(String[] words) throws Exception {
            int count = words.length > 2 ? Integer.parseInt(words[2]) : 0;
            switch (words[1]) {
                case "take": // how many, how long to wait
                    return take(count, Long.parseLong(words[3])) ? held(0, List.of()) : busy();
                case "give": // how many
                    String released = now();
                    semaphore.release(count);
                    return new String[] {"free", released};
                case "available":
                    return value(semaphore.availablePermits());
                case "set":
                    return value(semaphore.trySetPermits(count));
                default:
                    return unknown(words);
            }
        }

        private boolean take(int count, long wait) throws InterruptedException {
            if (wait == NONE) {
                semaphore.acquire(count);
                return true;
            }
            return wait == 0 ? semaphore.tryAcquire(count) : semaphore.tryAcquire(count, wait, MS);
        }
    }

    private static final class Permits implements Kind {
        private final RPermitExpirableSemaphore semaphore;

        Permits(RPermitExpirableSemaphore semaphore) {
            this.semaphore = semaphore;
        }

        @Override
        public String[] answer(String[] words) throws Exception {
            switch (words[1]) {
                case "take": // how many, how long to wait, lease; -1: none
                    List<String> ids = take(
                            Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]));
                    return ids.isEmpty() ? busy() : held(0, ids);
                case "give": // ids
                    List<String> given = Arrays.asList(words).subList(2, words.length);
                    String released = now();
                    if (given.size() == 1) {
                        semaphore.release(given.get(0));
                    } else {
                        semaphore.release(given);
                    }
                    return new String[] {"free", released};
                case "available":
                    return value(semaphore.availablePermits());
                case "total":
                    return value(semaphore.getPermits());
                case "acquired":
                    return value(semaphore.acquiredPermits());
                case "set":
                    return value(semaphore.trySetPermits(Integer.parseInt(words[2])));
                default:
                    return unknown(words);
            }
        }

        private List<String> take(int count, long wait, long lease) throws InterruptedException {
            if (wait == NONE) {
                return lease == NONE ? semaphore.acquire(count) : semaphore.acquire(count, lease, MS);
            }
            if (wait == 0 && lease == NONE) {
                return semaphore.tryAcquire(count);
            }
            return semaphore.tryAcquire(count, wait, lease, MS);
        }
    }

    private static final class Latch implements Kind {
        private final RCountDownLatch latch;

        Latch(RCountDownLatch latch) {
            this.latch = latch;
        }

        @Override
        public String[] answer(String[] words) throws Exception {
            switch (words[1]) {
                case "set":
                    return value(latch.trySetCount(Long.parseLong(words[2])));
                case "down":
                    latch.countDown();
                    return done();
                case "count":
                    return value(latch.getCount());
                case "wait": // how long; -1: without limit
                    long wait = Long.parseLong(words[2]);
                    if (wait == NONE) {
                        latch.await();
                        return value(true);
                    }
                    return value(latch.await(wait, MS));
                default:
                    return unknown(words);
            }
        }
    }
}
