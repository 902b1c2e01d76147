//! The queues in which certificates wait, one for each kind of work, and the budget and slots that a turn in each takes.

/// The queue in which a certificate waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// It goes on with an existing order, for which it needs no budget of orders.
    Resume,
    /// It is renewed.
    Renew,
    /// It is ordered for the first time, or in another form.
    New,
}

impl Lane {
    /// All lanes, in the order in which those of one namespace get their turns.
    pub(super) const ALL: [Self; 3] = [Self::Resume, Self::Renew, Self::New];

    pub(super) fn place(self) -> usize {
        match self {
            Self::Resume => 0,
            Self::Renew => 1,
            Self::New => 2,
        }
    }

    /// The index of the budget that it takes from.
    pub(super) fn budget(self) -> Option<usize> {
        match self {
            Self::Resume => None,
            Self::Renew => Some(1),
            Self::New => Some(0),
        }
    }

    /// One more may go while fewer than this many of `of` are in use. New certificates leave a
    /// quarter free, so that a renewal finds one.
    pub(super) fn most(self, of: usize) -> usize {
        match self {
            Self::Resume | Self::Renew => of,
            Self::New => of - of / 4,
        }
    }
}
