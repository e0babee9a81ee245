//! Every behaviour that all backends share, on a real Valkey.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::Stage;

windlass_testkit::conformance!(|| Stage::redis(Flavor::Valkey));
