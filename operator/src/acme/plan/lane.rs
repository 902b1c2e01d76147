//! What a certificate waits for, and what it takes from the budgets and slots when its turn comes.

/// What somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// To go on with an order that exists: takes no budget.
    Resume,
    /// To renew.
    Renew,
    /// To order a certificate for the first time, or another one.
    New,
}

impl Lane {
    /// In the order in which a namespace's go.
    pub(super) const ALL: [Self; 3] = [Self::Resume, Self::Renew, Self::New];

    pub(super) fn place(self) -> usize {
        match self {
            Self::Resume => 0,
            Self::Renew => 1,
            Self::New => 2,
        }
    }

    /// The budget it takes from.
    pub(super) fn budget(self) -> Option<usize> {
        match self {
            Self::Resume => None,
            Self::Renew => Some(1),
            Self::New => Some(0),
        }
    }

    /// How many of so many may be taken when one more goes. A quarter is kept from new certificates, so that a
    /// renewal finds one.
    pub(super) fn most(self, of: usize) -> usize {
        match self {
            Self::Resume | Self::Renew => of,
            Self::New => of - of / 4,
        }
    }
}
