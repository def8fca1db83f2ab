//! What a caller brings to every call: how urgent it is and until when an answer is of use.

use tokio::{sync::watch, time::Instant};

use crate::manners::pace::Class;

/// Urgency and deadline of one call, however many requests it takes.
#[derive(Clone, Debug)]
pub struct Context {
    urgency: Urgency,
    pub deadline: Instant,
}

#[derive(Clone, Debug)]
enum Urgency {
    Fixed(Class),
    /// Work that several callers wait for: it becomes urgent when the first urgent one joins.
    Shared(watch::Receiver<Class>),
}

impl Context {
    pub fn new(class: Class, deadline: Instant) -> Self {
        Self { urgency: Urgency::Fixed(class), deadline }
    }

    pub(crate) fn shared(class: watch::Receiver<Class>, deadline: Instant) -> Self {
        Self { urgency: Urgency::Shared(class), deadline }
    }

    pub fn class(&self) -> Class {
        match &self.urgency {
            Urgency::Fixed(class) => *class,
            Urgency::Shared(class) => *class.borrow(),
        }
    }

    /// Returns when the call has become urgent; never, if it is already or nobody can make it so.
    pub(crate) async fn raised(&self) {
        if let Urgency::Shared(class) = &self.urgency
            && self.class() == Class::Background
        {
            let mut class = class.clone();
            if class.wait_for(|class| *class == Class::Admission).await.is_ok() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    pub fn has_passed(&self) -> bool {
        Instant::now() >= self.deadline
    }
}
