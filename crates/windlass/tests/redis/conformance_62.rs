//! Every behaviour that all backends share, on the oldest Redis that is supported.

use windlass_testkit::Flavor;
use windlass_testkit::conformance::Stage;

windlass_testkit::conformance!(|| Stage::redis(Flavor::Redis62));
