//! Every behaviour that all backends share, on `file:`.

use windlass_testkit::conformance::Stage;

windlass_testkit::conformance!(Stage::file);
