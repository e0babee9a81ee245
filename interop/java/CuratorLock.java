import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Counts under Curator's mutex, in a plain file: 19 digits and the letter of the side that wrote last. */
public final class CuratorLock {
    public static void main(String[] args) throws Exception {
        int sections = Integer.parseInt(args[3]);
        try (CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], new ExponentialBackoffRetry(100, 5));
                RandomAccessFile file = new RandomAccessFile(args[2], "rw")) {
            client.start();
            if (!client.blockUntilConnected(30, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not connected within 30 seconds");
            }
            InterProcessMutex mutex = new InterProcessMutex(client, "/" + args[1]);
            System.out.println("ready " + version());
            System.in.read();
            int turns = 0;
            for (int i = 0; i < sections; i++) {
                if (!mutex.acquire(60, TimeUnit.SECONDS)) {
                    throw new IllegalStateException("not granted within a minute");
                }
                try {
                    turns += count(file);
                } finally {
                    mutex.release();
                }
                TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(4000)); // lets the others in
            }
            System.out.println("done " + sections + " " + turns);
        }
    }

    /** Reads, thinks, writes one more; 1 if the other side was here last. */
    private static int count(RandomAccessFile file) throws Exception {
        byte[] seen = new byte[20];
        file.seek(0);
        file.readFully(seen);
        TimeUnit.MICROSECONDS.sleep(500);
        long number = Long.parseLong(new String(seen, 0, 19, StandardCharsets.US_ASCII)) + 1;
        file.seek(0);
        file.write(String.format("%019dt", number).getBytes(StandardCharsets.US_ASCII));
        return seen[19] == 'o' ? 1 : 0;
    }

    /** That of the archive in use. */
    private static String version() {
        String path = InterProcessMutex.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        return path.replaceAll(".*curator-recipes-|\\.jar$", "");
    }
}
