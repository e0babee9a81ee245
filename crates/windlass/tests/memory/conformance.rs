//! Every behaviour that all backends share, on `memory:`.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::memory);
