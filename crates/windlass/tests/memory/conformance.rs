//! Every behaviour that all backends share, on `memory:`.

use windlass_testkit::conformance::Stage;

windlass_testkit::conformance!(Stage::memory);
