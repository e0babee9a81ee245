//! Bloom filters in different slots.

use windlass::ErrorKind;
use windlass_testkit::RedisCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn union_across_slots_reports_lost_bits() {
    let cluster = RedisCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    assert_ne!(cluster.slot("f").unwrap(), cluster.slot("g").unwrap());
    let delete_bits = |name: &str| {
        let pattern = format!("*bits:{{{name}}}*");
        let master = cluster.master_of(name).unwrap();
        let keys = master.command(&["KEYS", &pattern]).unwrap();
        let key = keys.lines().next().expect("it has bits");
        master.command(&["DEL", key]).unwrap();
    };
    for lost in ["f", "g"] {
        let f = w.bloom("f").capacity(1_000).create().await.unwrap();
        let g = w.bloom("g").capacity(1_000).create().await.unwrap();
        assert!(g.insert("x").await.unwrap());
        f.union(&g).await.unwrap();
        assert!(f.contains("x").await.unwrap());
        delete_bits(lost);
        let error = f.union(&g).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains("lost"), "{error}");
        assert!(f.remove().await.unwrap() && g.remove().await.unwrap());
    }
}
