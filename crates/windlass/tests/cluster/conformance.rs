//! Every behaviour that all backends share, on a Redis Cluster.

use windlass_testkit::conformance::Stage;

windlass_testkit::conformance!(Stage::cluster);
