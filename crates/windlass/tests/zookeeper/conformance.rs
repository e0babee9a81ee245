//! What all backends share of coordination, on a real ZooKeeper; and that the rest is refused.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance_without_flow_and_data!(TestStore::zookeeper);
