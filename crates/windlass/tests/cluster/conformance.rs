//! Every behaviour that all backends share, on a Redis Cluster.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::cluster);
