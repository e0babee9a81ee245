//! Every behaviour that all backends share, on a real Redis.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(|| TestStore::redis(Flavor::Redis));
