//! Every behaviour that all backends share, on the oldest Redis that is supported.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(|| TestStore::redis(Flavor::Redis62));
