//! The conformance suite on a Redis Cluster.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::cluster);
