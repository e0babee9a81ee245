//! The conformance suite on Redis 6.2, the oldest supported version.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(|| TestStore::redis(Flavor::Redis62));
