import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/** A single server, whose counters can be set: arguments PORT FOLDER TICK. */
public class SequenceServer {
    public static void main(String[] args) throws Exception {
        File folder = new File(args[1]);
        ZooKeeperServer server = new ZooKeeperServer(folder, folder, Integer.parseInt(args[2]));
        server.setMaxSessionTimeout(600_000);
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", Integer.parseInt(args[0]));
        ServerCnxnFactory.createFactory(address, 0).startup(server);
        System.out.println("ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = orders.readLine()) != null; ) {
            String[] order = line.split(" ");
            if (order[0].equals("zxid")) {
                server.setZxid(Long.parseLong(order[1]));
            } else {
                server.getZKDatabase().getDataTree().getNode(order[0]).stat.setCversion(Integer.parseInt(order[1]));
            }
            System.out.println("set");
        }
    }
}
