//! The conformance suite on ZooKeeper; flow and data are unsupported.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance_without_flow_and_data!(TestStore::zookeeper);
