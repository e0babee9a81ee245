//! Every behaviour that all backends share, on a replicated Redis that sentinels watch over.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::sentinel);
