//! Decides what it means that every paste of a batch fails. Such pastes may have a common owner,
//! because those come due side by side. So a batch of the pastes that came due last is tried; if
//! all of these fail, too, the cause is the database, and the run stops.

/// What must be found out before the run goes on.
#[derive(Debug, Default)]
pub(super) struct EveryPasteFails(Option<Question>);

#[derive(Debug)]
struct Question {
    reason: String,
    /// A batch of the pastes that came due last is in flight.
    is_tried: bool,
}

impl EveryPasteFails {
    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Every paste of a batch failed. Returns why the run must stop, if the pastes that came due last
    /// failed, too.
    pub(super) fn again(&mut self, reason: String) -> Option<String> {
        match self.0.take() {
            Some(Question { is_tried: true, .. }) => Some(reason),
            _ => {
                self.0 = Some(Question { reason, is_tried: false });
                None
            }
        }
    }

    /// A batch was finished: with a deleted row, it was not the database.
    pub(super) fn batch_finished(&mut self, rows: usize) {
        self.0 = self.0.take().filter(|_| rows == 0);
    }

    /// Takes the question and returns its reason, if the pastes that came due last were not tried
    /// yet. If they were tried with a mixed result, drops the question and returns `None`.
    pub(super) fn take_untried(&mut self) -> Option<String> {
        self.0.take().filter(|question| !question.is_tried).map(|question| question.reason)
    }

    /// The pastes that came due last are in flight, or (`is_tried` false) could not be claimed yet.
    pub(super) fn keep(&mut self, reason: String, is_tried: bool) {
        self.0 = Some(Question { reason, is_tried });
    }
}
