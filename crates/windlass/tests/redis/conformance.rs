//! The conformance suite on Redis.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(|| TestStore::redis(Flavor::Redis));
