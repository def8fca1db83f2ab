//! Many callers at one door: their order, what a refusal does to them, and what those cost who give up.

use super::*;

const ANYONE: Account = None;

fn limiter(per_second: Option<u32>, burst: u32, connections: u32) -> Arc<Limiter> {
    let number = |value| NonZeroU32::new(value).unwrap();
    let rate = per_second.map(|rate| Rate::per_second(f64::from(rate), number(burst)));
    Limiter::new(Budget { rate, connections: number(connections) }, Instant::now())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

fn hold(everyone: Option<u64>, background: Option<u64>) -> Hold {
    let span = |seconds: Option<u64>| seconds.map(Duration::from_secs);
    Hold { everyone: span(everyone), background: span(background), ends: span(everyone) }
}

/// Has the limiter hear of an answer that says something about a quota.
fn learn(limiter: &Limiter, account: Account, hold: Hold) {
    limiter.learn(account, |_| Some(hold));
}

fn account(number: u32) -> CredentialId {
    crate::testing::credential(&format!("user-{number}")).id()
}

async fn enter(
    limiter: &Arc<Limiter>,
    class: Class,
    account: Account,
    deadline: Instant,
) -> Result<Permit, Refused> {
    limiter.enter(class, &Tenant::default(), account, deadline, None).await
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn requests_are_spread_over_time() {
    let limiter = limiter(Some(10), 2, 8);
    let start = Instant::now();
    for _ in 0..12 {
        enter(&limiter, Class::Admission, ANYONE, start + Duration::from_mins(1)).await.unwrap();
    }
    assert_eq!((Instant::now() - start).as_millis() / 100, 10, "two at once, then one every 100 ms");
}

#[tokio::test(start_paused = true)]
async fn admission_overtakes_what_was_waiting() {
    let limiter = limiter(Some(1), 1, 8);
    enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    let (order, mut seen) = tokio::sync::mpsc::unbounded_channel();
    for (name, class) in
        [("copy", Class::Background), ("watch", Class::Background), ("pod", Class::Admission)]
    {
        let (limiter, order) = (Arc::clone(&limiter), order.clone());
        tokio::spawn(async move {
            enter(&limiter, class, ANYONE, Instant::now() + Duration::from_mins(1)).await.unwrap();
            order.send(name).unwrap();
        });
        settle().await;
    }
    drop(order);
    let mut names = Vec::new();
    while let Some(name) = seen.recv().await {
        names.push(name);
    }
    assert_eq!(names, ["pod", "copy", "watch"]);
}

#[tokio::test(start_paused = true)]
async fn copies_leave_connections_to_admission() {
    let limiter = limiter(None, 1, 4);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(enter(&limiter, Class::Background, ANYONE, soon()).await.unwrap());
    }
    assert_eq!(enter(&limiter, Class::Background, ANYONE, soon()).await.unwrap_err(), Refused::TooLate);
    let admission = enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    assert_eq!(enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap_err(), Refused::TooLate);
    drop(admission);
    enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    held.pop();
    enter(&limiter, Class::Background, ANYONE, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_costs_nothing() {
    let limiter = limiter(Some(1), 1, 1);
    let first = enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    let patient = Arc::clone(&limiter);
    let abandoned = tokio::spawn(async move { enter(&patient, Class::Admission, ANYONE, soon()).await });
    settle().await;
    abandoned.abort();
    settle().await;
    drop(first);
    let start = Instant::now();
    enter(&limiter, Class::Admission, ANYONE, soon() + Duration::from_secs(1)).await.unwrap();
    assert!(Instant::now() - start <= Duration::from_millis(1001));
    assert!(limiter.lock().waiting.iter().all(TenantQueue::is_empty));
}

#[tokio::test(start_paused = true)]
async fn a_refused_account_is_held_and_the_others_are_not() {
    let limiter = limiter(None, 1, 4);
    let (refused, other) = (Some(account(1)), Some(account(2)));
    learn(&limiter, refused, hold(Some(30), Some(30)));
    let until = Instant::now() + Duration::from_secs(30);
    let held = Refused::Held { ends: Some(until) };
    let told = [refused, other, ANYONE].map(|account| limiter.held_until(account, Instant::now()));
    assert_eq!(told, [Some(until), None, None]);
    for class in [Class::Admission, Class::Background] {
        assert_eq!(enter(&limiter, class, refused, soon()).await.unwrap_err(), held, "{class:?}");
    }
    enter(&limiter, Class::Admission, other, soon()).await.unwrap();
    let patient = Instant::now() + Duration::from_mins(1);
    let nobody = Tenant::default();
    let busy = limiter.enter(Class::Background, &nobody, refused, patient, Some(Duration::from_secs(29)));
    assert_eq!(busy.await.unwrap_err(), held, "others have something else to do meanwhile");
    enter(&limiter, Class::Background, refused, patient).await.unwrap();
    assert!(Instant::now() >= until, "background work waits for the quota when it has the time");
}

#[tokio::test(start_paused = true)]
async fn those_in_line_hear_of_a_refusal() {
    let limiter = limiter(Some(2), 1, 4);
    let start = Instant::now();
    drop(enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap());
    let in_line: Vec<_> = (0..10)
        .map(|number| {
            let (limiter, class) =
                (Arc::clone(&limiter), if number < 8 { Class::Admission } else { Class::Background });
            let time = start + Duration::from_mins(1);
            tokio::spawn(async move { enter(&limiter, class, ANYONE, time).await.map(drop) })
        })
        .collect();
    settle().await;
    learn(&limiter, ANYONE, hold(Some(20), Some(20)));
    for (number, waiting) in in_line.into_iter().enumerate() {
        let outcome = waiting.await.unwrap();
        if number < 8 {
            assert!(matches!(outcome, Err(Refused::Held { .. })), "{outcome:?}");
            assert!(start.elapsed() < Duration::from_secs(1), "nobody waits for a turn that is of no use");
        } else {
            outcome.unwrap();
            assert!(start.elapsed() >= Duration::from_secs(20), "what can wait does");
        }
    }
    let budget = start.elapsed();
    assert!(budget < Duration::from_millis(20_600), "turns that were not used are not lost: {budget:?}");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_under_way_does_not_take_a_refusal_back() {
    let limiter = limiter(None, 1, 4);
    learn(&limiter, ANYONE, hold(Some(600), Some(600)));
    let held = Refused::Held { ends: Some(Instant::now() + Duration::from_mins(10)) };
    let low = hold(None, Some(60));
    let holds = [Hold::default(), low, hold(Some(0), Some(0)), hold(Some(5), Some(5))];
    for later in [None].into_iter().chain(holds.map(Some)) {
        tokio::time::advance(Duration::from_millis(1)).await;
        limiter.learn(ANYONE, |_| later);
        for class in [Class::Admission, Class::Background] {
            assert_eq!(enter(&limiter, class, ANYONE, soon()).await.unwrap_err(), held, "{later:?}");
        }
    }
    learn(&limiter, ANYONE, hold(Some(900), Some(900)));
    let longer = Refused::Held { ends: Some(Instant::now() + Duration::from_mins(15)) };
    assert_eq!(enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap_err(), longer);
}

#[tokio::test(start_paused = true)]
async fn the_end_that_is_told_is_the_registrys_and_not_the_holds() {
    let limiter = limiter(None, 1, 4);
    let hours = |hours| Some(Duration::from_hours(hours));
    learn(&limiter, ANYONE, Hold { everyone: hours(1), background: hours(1), ends: hours(24) });
    let ends = Some(Instant::now() + Duration::from_hours(24));
    assert_eq!(enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap_err(), Refused::Held { ends });
    tokio::time::advance(Duration::from_mins(61)).await;
    enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    learn(&limiter, ANYONE, Hold { ends: None, ..hold(Some(5), Some(5)) });
    let unknown = Refused::Held { ends: None };
    assert_eq!(enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap_err(), unknown);
}

#[tokio::test(start_paused = true)]
async fn a_low_quota_holds_background_only() {
    let limiter = limiter(None, 1, 4);
    learn(&limiter, ANYONE, hold(None, Some(60)));
    enter(&limiter, Class::Admission, ANYONE, soon()).await.unwrap();
    assert!(matches!(enter(&limiter, Class::Background, ANYONE, soon()).await, Err(Refused::Held { .. })));
    learn(&limiter, ANYONE, Hold::default());
    enter(&limiter, Class::Background, ANYONE, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_others_stays_so_until_more_is_said_to_be_left() {
    let limiter = limiter(None, 1, 4);
    learn(&limiter, ANYONE, hold(None, Some(60)));
    limiter.learn(ANYONE, |_| None);
    assert!(matches!(enter(&limiter, Class::Background, ANYONE, soon()).await, Err(Refused::Held { .. })));
    tokio::time::advance(Duration::from_mins(1)).await;
    enter(&limiter, Class::Background, ANYONE, soon()).await.unwrap();
    limiter.learn(ANYONE, |_| None);
    assert!(limiter.lock().accounts.is_empty(), "what is over is forgotten");
}

#[tokio::test(start_paused = true)]
async fn refusals_in_a_row_are_counted_until_an_answer() {
    let limiter = limiter(None, 1, 4);
    let refuse = || {
        let mut before = None;
        limiter.learn(ANYONE, |refusals| {
            before = Some(refusals);
            Some(hold(Some(5), Some(5)))
        });
        before
    };
    assert_eq!([refuse(), refuse(), refuse()], [Some(0); 3], "those of one wave are one");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!([refuse(), refuse()], [Some(1); 2]);
    tokio::time::advance(Duration::from_secs(6)).await;
    limiter.learn(ANYONE, |_| None);
    assert_eq!(refuse(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn accounts_are_bounded() {
    let limiter = limiter(None, 1, 4);
    for number in 0..5_000 {
        learn(&limiter, Some(account(number)), hold(Some(60), Some(60)));
    }
    assert!(limiter.lock().accounts.len() <= MOST_ACCOUNTS);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_asks_much_delays_others_by_one_turn() {
    let limiter = limiter(Some(10), 1, 8);
    let (order, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let stand = |name: &'static str| {
        let (limiter, order) = (Arc::clone(&limiter), order.clone());
        tokio::spawn(async move {
            let deadline = Instant::now() + Duration::from_mins(1);
            limiter.enter(Class::Admission, &Tenant::namespace(name), ANYONE, deadline, None).await.unwrap();
            order.send(name).unwrap();
        });
    };
    for _ in 0..20 {
        stand("crowd");
    }
    settle().await;
    stand("shop");
    stand("shop");
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        settle().await;
    }
    let mut first = Vec::new();
    while let Ok(name) = seen.try_recv() {
        first.push(name);
    }
    assert_eq!(first.iter().filter(|name| **name == "shop").count(), 2, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_leaves_connections_to_those_that_have_none() {
    let limiter = limiter(None, 1, 8);
    let enter = async |name: &str| {
        let deadline = Instant::now() + Duration::from_millis(10);
        limiter.enter(Class::Admission, &Tenant::namespace(name), ANYONE, deadline, None).await
    };
    let mut held = Vec::new();
    while let Ok(permit) = enter("slow").await {
        held.push(permit);
    }
    assert_eq!(held.len(), 6);
    let first = enter("shop").await.unwrap();
    assert!(enter("shop").await.is_err(), "it has one, and the others are few");
    let _other = enter("team").await.unwrap();
    assert!(enter("late").await.is_err(), "all are in use");
    drop(first);
    enter("late").await.unwrap();
}
