//! Every behaviour that all backends share, on `file:`.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::file);
